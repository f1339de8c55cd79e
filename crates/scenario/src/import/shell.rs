//! Words of command lines, as a POSIX shell and bash's `$'...'` read them.

use super::ImportError;

/// A command: its words, and the line on which it begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) number: usize,
    pub(super) words: Vec<String>,
}

/// Splits text into commands. They end at line ends, `;`, `&`, `&&`, `||`, and before `|`.
///
/// # Errors
/// A quote is open; a word has a variable or another thing that only a shell knows.
pub(super) fn split(text: &str) -> Result<Vec<Line>, ImportError> {
    let mut reader = Reader { rest: text.chars().peekable(), line: 1, word: None, commands: Vec::new(), open: None };
    while let Some(char) = reader.next() {
        reader.take(char)?;
    }
    reader.end_word()?;
    reader.end_command();
    Ok(reader.commands)
}

struct Reader<'t> {
    rest: std::iter::Peekable<std::str::Chars<'t>>,
    line: usize,
    word: Option<Vec<u8>>,
    commands: Vec<Line>,
    /// The command in progress.
    open: Option<Line>,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let char = self.rest.next()?;
        if char == '\n' {
            self.line += 1;
        }
        Some(char)
    }

    fn fail<T>(&self, what: impl Into<String>) -> Result<T, ImportError> {
        Err(ImportError::Command { line: Some(self.line), what: what.into() })
    }

    fn push(&mut self, char: char) {
        let bytes = self.word.get_or_insert_default();
        bytes.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
    }

    fn take(&mut self, char: char) -> Result<(), ImportError> {
        match char {
            ' ' | '\t' | '\r' => self.end_word()?,
            '\n' => {
                self.line -= 1;
                self.end_word()?;
                self.line += 1;
                self.end_command();
            }
            ';' | '&' | '|' => {
                self.end_word()?;
                self.end_command();
                if char == '|' && self.rest.peek() != Some(&'|') {
                    // What reads curl's output is no request.
                    self.skip_line();
                }
                while self.rest.next_if(|&next| next == ';' || next == '&' || next == '|').is_some() {}
            }
            '#' if self.word.is_none() => self.skip_line(),
            '>' | '<' => return self.fail(format!("`{char}` redirects a file, which a script cannot do: remove it")),
            '(' | ')' if self.word.is_none() => {
                return self.fail(format!("`{char}` is for a shell: expected curl commands"));
            }
            '\\' => match self.next() {
                Some('\n') | None => {}
                Some('\r') if self.rest.peek() == Some(&'\n') => {
                    self.next();
                }
                Some(other) => self.push(other),
            },
            '\'' => self.single()?,
            '"' => self.double()?,
            '$' if self.rest.peek() == Some(&'\'') => {
                self.next();
                self.ansi()?;
            }
            '$' if self.rest.peek() == Some(&'"') => {}
            '$' | '`' => self.variable(char)?,
            '^' if matches!(self.rest.peek(), Some('"' | '\n' | '\r')) => {
                return self.fail("`^` is of Windows' cmd: choose \"Copy as cURL (bash)\" in the browser");
            }
            char => self.push(char),
        }
        Ok(())
    }

    fn skip_line(&mut self) {
        while self.rest.next_if(|&next| next != '\n').is_some() {}
    }

    /// Takes a `$` that stands for itself.
    fn variable(&mut self, char: char) -> Result<(), ImportError> {
        let begins = self.rest.peek().is_some_and(|next| next.is_ascii_alphanumeric() || "_({@*#?!$-".contains(*next));
        if char == '`' || begins {
            return self
                .fail(format!("`{char}` is replaced by a shell: put the value in its place, or quote it by '...'"));
        }
        self.push(char);
        Ok(())
    }

    fn single(&mut self) -> Result<(), ImportError> {
        let began = self.line;
        self.word.get_or_insert_default();
        loop {
            match self.next() {
                Some('\'') => return Ok(()),
                Some(char) => self.push(char),
                None => return open(began, "'"),
            }
        }
    }

    fn double(&mut self) -> Result<(), ImportError> {
        let began = self.line;
        self.word.get_or_insert_default();
        loop {
            match self.next() {
                Some('"') => return Ok(()),
                Some('\\') => match self.next() {
                    Some('\n') => {}
                    Some(char @ ('"' | '\\' | '$' | '`')) => self.push(char),
                    Some(char) => {
                        self.push('\\');
                        self.push(char);
                    }
                    None => return open(began, "\""),
                },
                Some(char @ ('$' | '`')) => self.variable(char)?,
                Some(char) => self.push(char),
                None => return open(began, "\""),
            }
        }
    }

    /// Reads `$'...'`, in which browsers write control characters and exclamation marks.
    fn ansi(&mut self) -> Result<(), ImportError> {
        let began = self.line;
        self.word.get_or_insert_default();
        loop {
            let char = match self.next() {
                Some('\'') => return Ok(()),
                Some('\\') => match self.next() {
                    Some('n') => '\n',
                    Some('r') => '\r',
                    Some('t') => '\t',
                    Some('a') => '\x07',
                    Some('b') => '\x08',
                    Some('f') => '\x0c',
                    Some('v') => '\x0b',
                    Some('e' | 'E') => '\x1b',
                    Some('x') => {
                        let byte = self.digits(16, 2, "")? as u8;
                        self.word.get_or_insert_default().push(byte);
                        continue;
                    }
                    Some(first @ '0'..='7') => {
                        let byte = self.digits(8, 2, &first.to_string())? as u8;
                        self.word.get_or_insert_default().push(byte);
                        continue;
                    }
                    Some(letter @ ('u' | 'U')) => self.unicode(if letter == 'u' { 4 } else { 8 })?,
                    Some(char @ ('\'' | '"' | '\\' | '?')) => char,
                    Some(char) => {
                        self.push('\\');
                        char
                    }
                    None => return open(began, "$'"),
                },
                Some(char) => char,
                None => return open(began, "$'"),
            };
            self.push(char);
        }
    }

    fn unicode(&mut self, most: usize) -> Result<char, ImportError> {
        let first = self.digits(16, most, "")?;
        // Browsers write a character beyond 16 bits as two.
        if (0xd800..0xdc00).contains(&first) {
            let mut ahead = self.rest.clone();
            if ahead.next() == Some('\\') && ahead.next() == Some('u') {
                self.rest = ahead;
                let second = self.digits(16, 4, "")?;
                let both = 0x10000 + ((first - 0xd800) << 10) + second.wrapping_sub(0xdc00);
                return match char::from_u32(both).filter(|_| (0xdc00..0xe000).contains(&second)) {
                    Some(char) => Ok(char),
                    None => self.fail(format!("\\u{first:04x}\\u{second:04x} is no character")),
                };
            }
        }
        match char::from_u32(first) {
            Some(char) => Ok(char),
            None => self.fail(format!("\\u{first:04x} is no character")),
        }
    }

    fn digits(&mut self, base: u32, most: usize, before: &str) -> Result<u32, ImportError> {
        let mut digits = before.to_owned();
        for _ in 0..most {
            let Some(digit) = self.rest.next_if(|next| next.is_digit(base)) else { break };
            digits.push(digit);
        }
        match u32::from_str_radix(&digits, base) {
            Ok(number) => Ok(number),
            Err(_) => self.fail("an escape within $'...' has no digits: expected some as in \\x41"),
        }
    }

    fn end_word(&mut self) -> Result<(), ImportError> {
        let Some(bytes) = self.word.take() else { return Ok(()) };
        let number = self.line;
        match String::from_utf8(bytes) {
            Ok(word) => {
                self.open.get_or_insert(Line { number, words: Vec::new() }).words.push(word);
                Ok(())
            }
            Err(_) => self.fail("a word is not UTF-8: put binary data into a file, and name it by --data-binary @FILE"),
        }
    }

    fn end_command(&mut self) {
        self.commands.extend(self.open.take());
    }
}

fn open<T>(line: usize, quote: &str) -> Result<T, ImportError> {
    Err(ImportError::Command { line: Some(line), what: format!("the quote {quote} is not closed: expected its end") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Vec<String>> {
        split(text).unwrap().into_iter().map(|line| line.words).collect()
    }

    #[test]
    fn words_are_those_of_a_shell() {
        for (text, expected) in [
            (r#"curl 'a b' "c \"d\" \n $ e" f\ g h"i"'j'"#, &["curl", "a b", "c \"d\" \\n $ e", "f g", "hij"][..]),
            ("curl \\\n  -H 'x' \\\r\n  y # z", &["curl", "-H", "x", "y"]),
            (r"curl $'a\'b\n\u00e9\x41\101\ud83d\ude00\u0021'", &["curl", "a'b\né\u{41}A😀!"]),
            ("curl ''", &["curl", ""]),
            ("curl a#b 'c\nd'", &["curl", "a#b", "c\nd"]),
            (r"curl $'\xc3\xa9'", &["curl", "é"]),
        ] {
            assert_eq!(words(text), [expected], "{text}");
        }
        assert_eq!(
            words("curl a; curl b && curl c &\ncurl d | jq . ; x\n\n# e"),
            [["curl", "a"], ["curl", "b"], ["curl", "c"], ["curl", "d"]]
        );
        let lines: Vec<usize> = split("\ncurl a \\\n b\ncurl c").unwrap().iter().map(|line| line.number).collect();
        assert_eq!(lines, [2, 4]);
    }

    #[test]
    fn what_only_a_shell_knows_is_a_mistake_with_its_line() {
        for (text, said) in [
            ("curl 'a\n\n", "line 1: the quote ' is not closed"),
            ("\ncurl \"$TOKEN\"", "line 2: `$` is replaced by a shell"),
            ("curl $(date)", "line 1: `$` is replaced"),
            ("curl `date`", "line 1: ``` is replaced"),
            ("curl a > b", "line 1: `>` redirects a file"),
            ("curl ^\"a^\"", "line 1: `^` is of Windows' cmd"),
            (r"curl $'\ud800'", "line 1: \\ud800 is no character"),
            (r"curl $'\xzz'", "line 1: an escape within"),
        ] {
            let error = split(text).unwrap_err().to_string();
            assert!(error.starts_with(said), "{text}: {error}");
        }
    }
}
