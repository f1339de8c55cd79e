//! Forms and query strings: `application/x-www-form-urlencoded`, as the URL standard writes it.

/// Appends pairs, each name and value percent-encoded, with `&` between them.
pub fn encode<N: AsRef<str>, V: AsRef<str>>(out: &mut String, pairs: impl IntoIterator<Item = (N, V)>) {
    let mut first = out.is_empty();
    for (name, value) in pairs {
        if !std::mem::take(&mut first) {
            out.push('&');
        }
        component(out, name.as_ref());
        out.push('=');
        component(out, value.as_ref());
    }
}

fn component(out: &mut String, text: &str) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        match byte {
            b' ' => out.push('+'),
            byte if byte.is_ascii_alphanumeric() || b"*-._".contains(&byte) => out.push(char::from(byte)),
            byte => {
                out.push('%');
                out.push(char::from(DIGITS[usize::from(byte >> 4)]));
                out.push(char::from(DIGITS[usize::from(byte & 15)]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_encoded() {
        let mut out = String::new();
        encode(&mut out, [("a", "1"), ("b c", "d&e=f"), ("ä", "+%~"), ("", "")]);
        assert_eq!(out, "a=1&b+c=d%26e%3Df&%C3%A4=%2B%25%7E&=");
        encode(&mut out, [("x", "y")]);
        assert!(out.ends_with("&=&x=y"));
    }
}
