//! Cookies over several requests and redirects, and forms with files. The jar's own rules are tested beside it.

use std::sync::mpsc;

use oroshi_client::{CookieJar, Multipart};

use crate::support::{Peer, block_on, builder, told};

/// Answers `/login` with a redirect and two cookies, and everything else with the request's `Cookie` field.
fn shop() -> Peer {
    Peer::start(|mut peer, _| {
        while let Some(head) = peer.request() {
            let target = head.split(' ').nth(1).unwrap();
            let cookie = head.lines().find_map(|line| line.strip_prefix("Cookie: ")).unwrap_or("none");
            let fields = match target {
                "/login" => "Location: /home\r\nSet-Cookie: id=secret; Path=/\r\nSet-Cookie: deep=1; Path=/shop\r\n",
                "/logout" => "Set-Cookie: id=; Max-Age=0; Path=/\r\n",
                _ => "",
            };
            let status = if target == "/login" { "303 See Other" } else { "200 OK" };
            peer.send(format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {}\r\n\r\n{cookie}", cookie.len()));
        }
    })
}

#[test]
fn cookies_of_responses_go_with_later_requests() {
    let shop = shop();
    block_on(async {
        let jar = CookieJar::new();
        let client = builder().cookies(jar.clone()).build_local().unwrap();
        let get = async |target: &str| client.get(shop.url(target)).send().await.unwrap().text().await.unwrap();
        assert_eq!(get("/").await, "none");
        assert_eq!(get("/login").await, "id=secret", "the redirect's own cookies go with the next request");
        assert_eq!(get("/shop/a").await, "deep=1; id=secret");
        let own = client.get(shop.url("/shop")).header("Cookie", "mine=2").send().await.unwrap();
        assert_eq!(own.text().await.unwrap(), "mine=2", "a field of the request's own stands alone");
        // Another client with the same jar, and one with none.
        let other = builder().cookies(jar.clone()).build_local().unwrap();
        assert_eq!(other.get(shop.url("/")).send().await.unwrap().text().await.unwrap(), "id=secret");
        let without = builder().build_local().unwrap();
        assert_eq!(without.get(shop.url("/login")).send().await.unwrap().text().await.unwrap(), "none");
        let url = shop.url("/").parse().unwrap();
        assert_eq!(jar.get(&url, "id").as_deref(), Some("secret"));
        get("/logout").await;
        jar.set(&url, "new", "3").unwrap();
        assert!(jar.set(&url, "a;b", "").is_err());
        assert_eq!(get("/").await, "new=3");
        jar.clear();
        assert_eq!(get("/").await, "none");
    });
}

#[test]
fn a_form_with_files_arrives() {
    let (tell, told_bodies) = mpsc::channel();
    let peer = Peer::start(move |mut peer, _| {
        while let Some(head) = peer.request() {
            let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
            let (length, kind) = (field("Content-Length: ").parse().unwrap(), field("Content-Type: "));
            tell.send((kind, peer.body(length))).unwrap();
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    block_on(async {
        let client = builder().build_local().unwrap();
        let form = Multipart::new().text("a", "1").file("f", "x.bin", "application/octet-stream", [0, 255]);
        let expected = (form.content_type(), form.clone().into_body());
        client.post(peer.url("/")).multipart(form).send().await.map_err(|error| told(&error)).unwrap();
        let (kind, body) = told_bodies.recv().unwrap();
        assert_eq!((kind, &body[..]), (expected.0, &expected.1[..]));
        let wrong = Multipart::new().file("f", "x", "a\r\nb: c", "");
        assert!(client.post(peer.url("/")).multipart(wrong).send().await.is_err());
        assert_eq!(peer.accepted(), 1);
    });
}
