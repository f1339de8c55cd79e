use std::time::Duration;

use oroshi_words::Secret;
use proptest::prelude::*;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
use ring::{hmac, signature};
use serde_json::{Value, json};

use super::keys::KeySetError;
use super::*;

/// RFC 7515, appendix A.1 to A.3: the payload of all three.
const JOE: &str = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
const JOE_HS256: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const JOE_RS256: &str = "\
    cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9\
    uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB\
    _eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rq\
    Vt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
const JOE_ES256: &str = "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
const N: &str = "\
    ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yR\
    T-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXB\
    dQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9ia\
    GNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
const K: &str = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
/// RFC 8037, appendix A.4: its payload is no JSON.
const ED25519: &str = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.\
                       hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";

/// Before the end of the RFC's tokens.
const THEN: u64 = 1_300_000_000;

fn rfc_keys() -> Vec<Value> {
    vec![
        json!({ "kty": "oct", "k": K }),
        json!({ "kty": "RSA", "n": N, "e": "AQAB" }),
        json!({
            "kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
            "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
        }),
        json!({ "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" }),
    ]
}

fn set(keys: &[Value]) -> KeySet {
    KeySet::read(json!({ "keys": keys }).to_string().as_bytes(), true).unwrap()
}

fn rules() -> Jwt {
    Jwt { leeway: Duration::ZERO, ..Jwt::default() }
}

fn rfc_tokens() -> [String; 3] {
    [
        format!("eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.{JOE}.{JOE_HS256}"),
        format!("eyJhbGciOiJSUzI1NiJ9.{JOE}.{JOE_RS256}"),
        format!("eyJhbGciOiJFUzI1NiJ9.{JOE}.{JOE_ES256}"),
    ]
}

fn check_with(token: &str, keys: &[Value], now: u64) -> Result<Identity, TokenError> {
    check(token.as_bytes(), None, Some(&set(keys)), &rules(), now)
}

#[test]
fn the_tokens_of_the_rfcs_are_accepted() {
    let keys = rfc_keys();
    for token in rfc_tokens() {
        let joe = check_with(&token, &keys, THEN).unwrap();
        assert_eq!((joe.user, joe.expires), (None, 1_300_819_380));
        assert_eq!(check_with(&token, &keys, 1_300_819_380), Err(TokenError::Expired));
    }
    assert_eq!(verify(ED25519.as_bytes(), None, Some(&set(&keys))).unwrap(), b"Example of Ed25519 signing");
    let new_name = format!("{}{}", BASE64URL.encode(br#"{"alg":"Ed25519"}"#), &ED25519[20..]);
    assert_eq!(verify(new_name.as_bytes(), None, Some(&set(&keys))), Err(TokenError::Signature), "the name is signed");
}

#[test]
fn one_changed_byte_is_noticed() {
    let keys = set(&rfc_keys());
    for token in rfc_tokens().iter().map(String::as_str).chain([ED25519]) {
        assert!(verify(token.as_bytes(), None, Some(&keys)).is_ok());
        for at in (0..token.len()).step_by(7) {
            let mut changed = token.as_bytes().to_vec();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert!(verify(&changed, None, Some(&keys)).is_err(), "{at} of {token}");
        }
    }
}

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn sign(header: &Value, claims: &Value) -> String {
    sign_with(SECRET.as_bytes(), header, claims)
}

fn sign_with(secret: &[u8], header: &Value, claims: &Value) -> String {
    let part = |value: &Value| BASE64URL.encode(value.to_string());
    let signed = format!("{}.{}", part(header), part(claims));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
    format!("{signed}.{}", BASE64URL.encode(tag))
}

fn check_secret(token: &str, rules: &Jwt) -> Result<Identity, TokenError> {
    check(token.as_bytes(), Key::secret(&Secret::new(SECRET)).as_ref(), None, rules, 1000)
}

fn of_claims(claims: &Value) -> Result<Identity, TokenError> {
    check_secret(&sign(&json!({ "alg": "HS256" }), claims), &rules())
}

#[test]
fn an_algorithm_is_that_of_its_key() {
    let public = rfc_keys().split_off(1);
    let good = json!({ "sub": "ann", "exp": 2000 });
    // The public key as a secret, in each form in which libraries have taken it.
    let n = BASE64URL.decode(N).unwrap();
    for secret in [&n[..], N.as_bytes(), public[0].to_string().as_bytes()] {
        let token = sign_with(secret, &json!({ "alg": "HS256" }), &good);
        assert_eq!(check_with(&token, &public, 1000), Err(TokenError::UnknownKey));
        assert!(check_with(&token, &rfc_keys(), 1000).is_err());
    }
    for alg in ["none", "None", "", "HS384", "HS512", "RS384", "PS256", "ES384", "ES256K", "hs256", "dir"] {
        let signed = sign(&json!({ "alg": alg }), &good);
        assert_eq!(check_secret(&signed, &rules()), Err(TokenError::Algorithm), "{alg}");
        let unsigned = signed.rsplit_once('.').unwrap().0.to_owned() + ".";
        assert_eq!(check_secret(&unsigned, &rules()), Err(TokenError::Algorithm), "{alg}");
    }
    let empty = sign(&json!({ "alg": "HS256" }), &good).rsplit_once('.').unwrap().0.to_owned() + ".";
    assert_eq!(check_secret(&empty, &rules()), Err(TokenError::Signature));
    assert!(Key::secret(&Secret::new(&SECRET[1..])).is_none(), "a short secret is none");
    // What a header says about keys means nothing.
    let jwk = json!({ "kty": "oct", "k": BASE64URL.encode([7; 32]) });
    let token = sign_with(&[7; 32], &json!({ "alg": "HS256", "jwk": jwk, "jku": "http://evil.test/" }), &good);
    assert_eq!(check_secret(&token, &rules()), Err(TokenError::Signature));
    for critical in [json!(["exp"]), json!([]), json!(1)] {
        let token = sign(&json!({ "alg": "HS256", "crit": critical, "b64": false }), &good);
        assert_eq!(check_secret(&token, &rules()), Err(TokenError::Malformed));
    }
}

#[test]
fn keys_are_found_by_their_names() {
    let random = SystemRandom::new();
    let pair = || {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap()
    };
    let jwk = |pair: &Ed25519KeyPair, kid: &str| {
        let x = BASE64URL.encode(pair.public_key());
        json!({ "kty": "OKP", "crv": "Ed25519", "x": x, "kid": kid })
    };
    let token = |pair: &Ed25519KeyPair, header: Value| {
        let part = |value: &Value| BASE64URL.encode(value.to_string());
        let signed = format!("{}.{}", part(&header), part(&json!({ "exp": 2000 })));
        let signature = pair.sign(signed.as_bytes());
        format!("{signed}.{}", BASE64URL.encode(signature))
    };
    let (one, two) = (pair(), pair());
    let keys = [jwk(&one, "1"), jwk(&two, "2")];
    let check = |pair, header| check_with(&token(pair, header), &keys, 1000).map(|_| ());
    assert_eq!(check(&one, json!({ "alg": "EdDSA", "kid": "1" })), Ok(()));
    assert_eq!(check(&two, json!({ "alg": "Ed25519", "kid": "2" })), Ok(()));
    assert_eq!(check(&two, json!({ "alg": "EdDSA" })), Ok(()), "without a name each key is tried");
    assert_eq!(check(&one, json!({ "alg": "EdDSA", "kid": "2" })), Err(TokenError::Signature));
    assert_eq!(check(&one, json!({ "alg": "EdDSA", "kid": "3" })), Err(TokenError::UnknownKey));
    assert_eq!(check(&one, json!({ "alg": "RS256", "kid": "1" })), Err(TokenError::UnknownKey));
    assert_eq!(check(&one, json!({ "alg": "EdDSA", "kid": 1 })), Err(TokenError::Malformed));
    // With many keys, few are tried.
    let many: Vec<Value> = (0..TRIES).map(|_| jwk(&pair(), "n")).chain([jwk(&one, "1")]).collect();
    assert_eq!(check_with(&token(&one, json!({ "alg": "EdDSA" })), &many, 1000), Err(TokenError::Signature));
}

#[test]
fn p_256_takes_signatures_of_fixed_length_alone() {
    let random = SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    for (form, is_good) in
        [(&ECDSA_P256_SHA256_FIXED_SIGNING, true), (&signature::ECDSA_P256_SHA256_ASN1_SIGNING, false)]
    {
        let pair = EcdsaKeyPair::from_pkcs8(form, pkcs8.as_ref(), &random).unwrap();
        let point = pair.public_key().as_ref();
        let text = |bytes: &[u8]| BASE64URL.encode(bytes);
        let key = json!({ "kty": "EC", "crv": "P-256", "x": text(&point[1..33]), "y": text(&point[33..]) });
        let signed = format!("{}.{}", text(br#"{"alg":"ES256"}"#), text(br#"{"exp":2000}"#));
        let token = format!("{signed}.{}", text(pair.sign(&random, signed.as_bytes()).unwrap().as_ref()));
        assert_eq!(check_with(&token, &[key], 1000).is_ok(), is_good);
    }
}

#[test]
fn claims_say_who_the_client_is_and_for_how_long() {
    let ann = of_claims(&json!({ "sub": "ann", "exp": 2000.5, "nbf": 1000, "iat": 1, "other": [1] })).unwrap();
    assert_eq!((ann.user.as_deref(), ann.expires), (Some("ann"), 2001));
    for (claims, error) in [
        (json!({ "sub": "ann" }), TokenError::NoEnd),
        (json!({ "exp": 1000 }), TokenError::Expired),
        (json!({ "exp": -1e300 }), TokenError::Expired),
        (json!({ "exp": 2000, "nbf": 1001 }), TokenError::Early),
        (json!({ "exp": "2000" }), TokenError::Claims),
        (json!({ "exp": null }), TokenError::NoEnd),
        (json!({ "exp": 2000, "sub": 7 }), TokenError::Claims),
        (json!({ "exp": 2000, "sub": "" }), TokenError::Claims),
        (json!({ "exp": 2000, "sub": "a\r\nX-Oroshi-User: root" }), TokenError::Claims),
        (json!({ "exp": 2000, "sub": "x".repeat(256) }), TokenError::Claims),
        (json!({ "exp": 2000, "aud": "us" }), TokenError::Audience),
        (json!({ "exp": 2000, "rights": { "a": ["fly"] } }), TokenError::Rights),
        (json!({ "exp": 2000, "rights": ["a"] }), TokenError::Claims),
        (json!(["ann", 2000]), TokenError::Claims),
        (json!("ann"), TokenError::Claims),
    ] {
        assert_eq!(of_claims(&claims), Err(error), "{claims}");
    }
    let far = of_claims(&json!({ "exp": 1e300 })).unwrap();
    assert_eq!(far.expires, u64::MAX);
    let patient = Jwt { leeway: Duration::from_secs(10), ..Jwt::default() };
    let check = |claims: Value| check_secret(&sign(&json!({ "alg": "HS256" }), &claims), &patient);
    assert_eq!(check(json!({ "exp": 991, "nbf": 1010 })).unwrap().expires, 1001);
    assert_eq!(check(json!({ "exp": 990 })), Err(TokenError::Expired));
}

#[test]
fn issuer_and_audience_are_ours() {
    let rules = Jwt { issuer: Some("login".into()), audience: vec!["push".into(), "chat".into()], ..rules() };
    for (claims, wanted) in [
        (json!({ "exp": 2000, "iss": "login", "aud": "push" }), Ok(())),
        (json!({ "exp": 2000, "iss": "login", "aud": ["shop", "chat"] }), Ok(())),
        (json!({ "exp": 2000, "iss": "login", "aud": ["shop"] }), Err(TokenError::Audience)),
        (json!({ "exp": 2000, "iss": "login", "aud": [] }), Err(TokenError::Audience)),
        (json!({ "exp": 2000, "iss": "login" }), Err(TokenError::Audience)),
        (json!({ "exp": 2000, "iss": "login.", "aud": "push" }), Err(TokenError::Issuer)),
        (json!({ "exp": 2000, "aud": "push" }), Err(TokenError::Issuer)),
        (json!({ "exp": 2000, "iss": ["login"], "aud": "push" }), Err(TokenError::Claims)),
    ] {
        let checked = check_secret(&sign(&json!({ "alg": "HS256" }), &claims), &rules);
        assert_eq!(checked.map(|_| ()), wanted, "{claims}");
    }
}

#[test]
fn rights_are_those_of_the_claim() {
    let rights = json!({ "chat:*": ["subscribe", "publish"], "news": ["history", "presence"] });
    let rights = of_claims(&json!({ "exp": 2000, "rights": rights })).unwrap().rights;
    assert!(rights.permit(Right::Publish, "chat:a") && rights.permit(Right::Presence, "news"));
    assert!(!rights.permit(Right::History, "chat:a") && !rights.permit(Right::Subscribe, "news"));
}

#[test]
fn what_is_no_token_is_refused_early() {
    let long = |count| format!("{}.{JOE}.{JOE_HS256}", "A".repeat(count));
    assert_eq!(check_with(&long(1 << 20), &rfc_keys(), THEN), Err(TokenError::TooLarge));
    for wrong in
        ["", ".", "..", "...", "a", "a.b", "a.b.c", "{}", "é.é.é", &long(100), &format!(".{JOE}."), "e30.e30.e30"]
    {
        assert_eq!(check_with(wrong, &rfc_keys(), THEN), Err(TokenError::Malformed), "{wrong}");
    }
    let token = &rfc_tokens()[0];
    for wrong in [format!("{token}="), format!(" {token}"), format!("{token}\n"), format!("{token}.{JOE}")] {
        assert!(check_with(&wrong, &rfc_keys(), THEN).is_err(), "{wrong}");
    }
}

#[test]
fn a_set_leaves_out_keys_that_verify_no_tokens() {
    let read = |value: &Value, secrets| KeySet::read(value.to_string().as_bytes(), secrets);
    let all = json!({ "keys": rfc_keys() });
    assert_eq!(read(&all, true).unwrap().all().len(), 4);
    assert_eq!(read(&all, false).unwrap().all().len(), 3, "a secret at a URL is none");
    let edited = |member: &str, value: Value| {
        let mut key = rfc_keys()[1].clone();
        key[member] = value;
        read(&json!({ "keys": [key] }), true).map(|set| set.all().len())
    };
    assert_eq!(edited("use", json!("sig")), Ok(1));
    assert_eq!(edited("alg", json!("RS256")), Ok(1));
    assert_eq!(edited("key_ops", json!(["verify"])), Ok(1));
    assert_eq!(edited("n", json!(format!("AAAA{N}"))), Ok(1), "zeros before a number mean nothing");
    for (member, value) in [
        ("use", json!("enc")),
        ("alg", json!("RS512")),
        ("key_ops", json!(["sign"])),
        ("kty", json!("rsa")),
        ("n", json!("AQAB")),
        ("n", json!("")),
        ("n", json!("?")),
        ("n", Value::Null),
        ("kid", json!(7)),
    ] {
        assert_eq!(edited(member, value.clone()), Err(KeySetError::NoKey), "{member} {value}");
    }
    for wrong in [json!([]), json!({}), json!({ "keys": {} }), json!("keys")] {
        assert_eq!(read(&wrong, true).err(), Some(KeySetError::Malformed), "{wrong}");
    }
    let many = json!({ "keys": vec![rfc_keys()[3].clone(); 101] });
    assert_eq!(read(&many, true).err(), Some(KeySetError::TooMany));
    assert_eq!(KeySet::read(&vec![b' '; keys::SET_BYTES + 1], true).err(), Some(KeySetError::TooLarge));
    assert!(!format!("{:?}", set(&rfc_keys())).contains("35, 53"), "a secret shows");
}

proptest! {
    #[test]
    fn no_input_panics(token in prop::collection::vec(any::<u8>(), 0..200), text in "[A-Za-z0-9_.-]{0,200}") {
        let keys = set(&rfc_keys());
        let _ = check(&token, None, Some(&keys), &rules(), THEN);
        let _ = check(text.as_bytes(), None, Some(&keys), &rules(), THEN);
        let _ = KeySet::read(&token, true);
    }
}
