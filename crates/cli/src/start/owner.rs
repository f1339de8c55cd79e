//! Looks up users and groups by name, in this machine's own files.
//!
//! Names from elsewhere (LDAP) need the libc; give these users as numbers.

use std::fs;

/// Reads `user`, `user:group` or `:group`, each a name or a number. A user alone leaves the group unchanged.
///
/// # Errors
/// If a name is unknown, in words.
pub(super) fn find(text: &str) -> Result<(Option<u32>, Option<u32>), String> {
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    if user.is_empty() && group.is_empty() {
        return Err(format!("`{text}` is no owner: expected USER, USER:GROUP or :GROUP"));
    }
    let look_up = |name: &str, what: &str, file: &str| -> Result<Option<u32>, String> {
        if name.is_empty() {
            return Ok(None);
        }
        let found = name.parse().ok().or_else(|| number(&fs::read_to_string(file).unwrap_or_default(), name));
        found.map(Some).ok_or_else(|| format!("`{name}` is no {what} in {file}: expected one of those, or a number"))
    };
    Ok((look_up(user, "user", "/etc/passwd")?, look_up(group, "group", "/etc/group")?))
}

/// Returns the third field of the line that begins with this name.
fn number(table: &str, name: &str) -> Option<u32> {
    let mut lines = table.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_found() {
        assert_eq!(find("root"), Ok((Some(0), None)));
        assert_eq!(find("root:root"), Ok((Some(0), Some(0))));
        assert_eq!(find(":7"), Ok((None, Some(7))));
        assert_eq!(find("33:"), Ok((Some(33), None)));
        for bad in ["", ":", "no-such-user", "root:no-such-group"] {
            assert!(find(bad).unwrap_err().contains("expected"), "{bad}");
        }
        assert_eq!(number("a:x:1:2\nab:x:3:4\n", "ab"), Some(3));
        assert_eq!(number("a\n", "a"), None);
    }
}
