-- Everything of the application. The tables seed_... keep the state that POST /initialize restores.

DROP DATABASE IF EXISTS isucon4;
-- Compares byte by byte, trailing spaces included.
CREATE DATABASE isucon4 CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
USE isucon4;

CREATE TABLE users (
    id INT UNSIGNED NOT NULL PRIMARY KEY,
    login VARCHAR(64) NOT NULL UNIQUE,
    salt CHAR(16) NOT NULL,
    password_hash CHAR(64) NOT NULL,
    -- Failed logins since the last successful one.
    failures INT UNSIGNED NOT NULL,
    -- The last successful login, and the one before it, in UTC.
    login_at DATETIME NULL,
    login_address VARCHAR(45) NULL,
    previous_at DATETIME NULL,
    previous_address VARCHAR(45) NULL
);

CREATE TABLE seed_users (
    id INT UNSIGNED NOT NULL PRIMARY KEY,
    failures INT UNSIGNED NOT NULL,
    login_at DATETIME NULL,
    login_address VARCHAR(45) NULL
);

-- Addresses from which a login has failed.
CREATE TABLE addresses (
    address VARCHAR(45) NOT NULL PRIMARY KEY,
    -- Failed logins since the last successful one.
    failures INT UNSIGNED NOT NULL
);

CREATE TABLE seed_addresses LIKE addresses;
