use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs;
use std::sync::{Arc, Mutex};
use std::thread;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// A folder with one file, `rows`.
fn folder(content: impl AsRef<[u8]>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("rows"), content).unwrap();
    folder
}

/// The files of a script in the folder.
fn files(folder: &TempDir) -> Arc<Files> {
    Files::new(&folder.path().join("script.lua"), None)
}

fn load(content: impl AsRef<[u8]>, declaration: Declaration) -> Result<Set, String> {
    Set::load(declaration, &files(&folder(content)), Part::WHOLE)
}

fn csv(content: impl AsRef<[u8]>) -> Result<Set, String> {
    load(content, Declaration::csv("rows"))
}

fn without_header(content: impl AsRef<[u8]>) -> Result<Set, String> {
    let mut declaration = Declaration::csv("rows");
    declaration.origin = Origin::Csv { separator: b',', header: false };
    load(content, declaration)
}

fn json(content: impl AsRef<[u8]>) -> Result<Set, String> {
    load(content, Declaration::json_lines("rows"))
}

fn list(rows: usize) -> Set {
    load("", Declaration::list(rows)).unwrap()
}

fn split(mut declaration: Declaration, content: &[u8], index: usize, count: usize) -> Result<Set, String> {
    declaration.split = true;
    Set::load(declaration, &files(&folder(content)), Part::new(index, count))
}

fn fields(set: &Set) -> Vec<Vec<Vec<u8>>> {
    let row = |row| match row {
        Row::Fields(fields) => fields.iter().map(|(_, field)| field.to_vec()).collect(),
        other => panic!("{other:?}"),
    };
    (0..set.len()).map(|index| row(set.get(index).unwrap())).collect()
}

fn texts(set: &Set) -> Vec<&str> {
    let text = |row| match row {
        Row::Json(text) => text,
        other => panic!("{other:?}"),
    };
    (0..set.len()).map(|index| text(set.get(index).unwrap())).collect()
}

#[test]
fn columns_have_the_names_of_the_header() {
    let set = csv("name,password,name of pet\nann,\"s,ec\"\"ret\",\nbob,ÿ,rex\n").unwrap();
    assert_eq!(set.len(), 2);
    let row = set.get(0).unwrap();
    let text = |text: &'static str| Some(Value::Text(text.as_bytes()));
    let columns = ["name", "password", "name of pet", "age", ""].map(|name| row.column(name));
    assert_eq!(columns, [text("ann"), text("s,ec\"ret"), text(""), None, None]);
    assert_eq!(set.get(1).unwrap().column("name of pet"), text("rex"));
    assert!(set.get(2).is_none() && set.get(usize::MAX).is_none());
}

#[test]
fn columns_without_a_name_have_numbers() {
    let names = |set: &Set| match set.get(0).unwrap() {
        Row::Fields(fields) => fields.iter().map(|(name, _)| format!("{name:?}")).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(names(&without_header("a,b\n1,2\n").unwrap()), ["Number(1)", "Number(2)"]);
    assert_eq!(names(&csv(",b,\n0,1,2\n").unwrap()), ["Number(1)", "Text([98])", "Number(3)"]);
}

#[test]
fn files_of_other_systems_are_read() {
    let expected = [[b"1".to_vec(), b"x\r\ny".to_vec()], [b"2".to_vec(), b"".to_vec()]];
    for content in [
        "\u{feff}a,b\r\n1,\"x\r\ny\"\r\n2,\r\n",
        "a,b\r\n1,\"x\r\ny\"\r\n2,",
        "\n\na,b\n1,\"x\r\ny\"\n\n\r\n2,\n\n\n",
        "\"a\",\"b\"\n\"1\",\"x\r\ny\"\n\"2\",\"\"",
    ] {
        assert_eq!(fields(&csv(content).unwrap()), expected, "{content:?}");
    }
    // A quoted name behind the mark; bytes that are no UTF-8.
    let set = csv(b"\xef\xbb\xbf\"a\"\n\x82\xa0\n").unwrap();
    assert_eq!(set.get(0).unwrap().column("a"), Some(Value::Text(b"\x82\xa0")));
}

#[test]
fn a_field_may_look_like_what_follows_the_file() {
    for content in ["x\nx\nx", "x\nx\nx\n", "x\n\"x\"\n\"x\"", "x\nx\n\"x\"\r\n"] {
        assert_eq!(fields(&csv(content).unwrap()), [[b"x"], [b"x"]], "{content:?}");
    }
    assert_eq!(fields(&csv("a\n\"\nx\"\n").unwrap()), [[b"\nx"]]);
}

#[test]
fn fields_are_separated_by_any_mark() {
    for (separator, content) in [(b';', "a;b\n1,5;2"), (b'\t', "a\tb\n1,5\t2"), (b'|', "a|b\n1,5|2")] {
        let mut declaration = Declaration::csv("rows");
        declaration.origin = Origin::Csv { separator, header: true };
        assert_eq!(fields(&load(content, declaration).unwrap()), [[b"1,5".to_vec(), b"2".to_vec()]]);
    }
    assert_eq!((parse_separator(b";"), parse_separator(b"\t")), (Ok(b';'), Ok(b'\t')));
    for bad in [&b""[..], b"::", b"\"", b"\n", b"\r", b"x", b"1", b"\xff", &[b' '; 1000]] {
        let message = parse_separator(bad).unwrap_err();
        assert!(message.contains("expected one character such as ; | or \\t") && message.len() < 100, "{message}");
    }
}

#[test]
fn mistakes_in_csv_have_file_and_line() {
    let wide = |columns: usize| vec!["1"; columns].join(",");
    for (content, message) in [
        ("", "rows has no rows: expected at least one"),
        ("\n\n", "rows has no rows: expected at least one"),
        ("a,b\n", "rows has no rows: expected at least one"),
        ("a,b\n1,2\n3\n", "rows, line 3: the row has 1 column: expected 2, as the header has"),
        ("a,b\r\n1,2\r\n\r\n3,4,5\r\n", "rows, line 4: the row has 3 columns: expected 2, as the header has"),
        ("\u{feff}\na,b\n\"1\n\n\",2\n\n3", "rows, line 7: the row has 1 column: expected 2, as the header has"),
        ("a,b,a\n", "rows, line 1: two columns are called `a`: expected different names, or `header = false`"),
        (
            "a,b\n1,2\n\n3,\"4\n5,6\n7,8\n",
            "rows, line 4: a quote opens in this row, and the file ends before it closes: expected another `\"`",
        ),
        (
            "a\n1\n\"",
            "rows, line 3: a quote opens in this row, and the file ends before it closes: expected another `\"`",
        ),
        (
            "a\n1\n\"x\"\"",
            "rows, line 3: a quote opens in this row, and the file ends before it closes: expected another `\"`",
        ),
        (&wide(1001), "rows, line 1: there are 1001 columns: expected at most 1,000 columns"),
    ] {
        assert_eq!(csv(content).unwrap_err(), message, "{content:?}");
    }
    let long = "n".repeat(10_000);
    assert!(csv(format!("{long},{long}\n")).unwrap_err().len() < 250);
    let message = without_header("1,2\n3\n").unwrap_err();
    assert_eq!(message, "rows, line 2: the row has 1 column: expected 2, as the first row has");
    assert_eq!(csv(b"\xff\xfea\0").unwrap_err(), "rows is UTF-16: expected UTF-8");
    assert_eq!(csv(wide(1000) + "\n" + &wide(1000)).unwrap_err().split(':').next(), Some("rows, line 1"));
    assert_eq!(fields(&without_header(wide(1000)).unwrap())[0].len(), 1000);
}

#[test]
fn a_row_without_end_is_refused_before_the_file_was_read() {
    let whole = "b".repeat(MAX_ROW_BYTES);
    assert_eq!(csv(format!("a\n{whole}\n1\n")).unwrap().len(), 2);
    let too_long = "the row takes more than 1.00 MiB: is a quote missing?";
    assert_eq!(csv(format!("a\n1\n{whole}c\n1\n")).unwrap_err(), format!("rows, line 3: {too_long}"));
    // All quotes, each of them doubled, is the largest in the file.
    let quotes = "\"\"".repeat(MAX_ROW_BYTES);
    assert_eq!(csv(format!("a\n1\n\"{quotes}\"\n1\n")).unwrap().len(), 3);
    let open = "1\n".repeat(20 * MAX_ROW_BYTES);
    assert_eq!(csv(format!("a\n1\n\"{open}\"\n")).unwrap_err(), format!("rows, line 3: {too_long}"));
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let folder = folder("a\n1\n");
    let load = |name: &str| Set::load(Declaration::csv(name), &files(&folder), Part::WHOLE).map(|set| set.len());
    assert!(load("other").unwrap_err().starts_with("other cannot be read: No such file"));
    assert_eq!(load("."), Err(". is no regular file: expected a file of rows".into()));
    assert_eq!(load("/dev/zero"), Err("/dev/zero is no regular file: expected a file of rows".into()));
    let absolute = folder.path().join("rows").display().to_string();
    assert_eq!((load("rows"), load(&absolute)), (Ok(1), Ok(1)));
    // Sparse, so that it takes no room.
    let large = fs::File::create(folder.path().join("large")).unwrap();
    large.set_len(MAX_FILE_BYTES + 1).unwrap();
    assert_eq!(load("large"), Err("large takes 1,073,741,825 bytes: expected at most 1,073,741,824 bytes".into()));
}

#[test]
fn lines_of_json_are_objects_or_any_value() {
    let content = "\u{feff}{\"id\": 1, \"tags\": [\"ä\"]}\r\n\n  [1, 2] \n\"x\"\nnull\n{}";
    let set = json(content).unwrap();
    assert_eq!(texts(&set), ["{\"id\": 1, \"tags\": [\"ä\"]}", "[1, 2]", "\"x\"", "null", "{}"]);
    let row = set.get(0).unwrap();
    assert_eq!(row.column("id"), Some(Value::Json(1.into())));
    assert_eq!(row.column("tags"), Some(Value::Json(vec!["ä"].into())));
    assert_eq!(row.column("other"), None);
    assert_eq!(set.get(1).unwrap().column("id"), None);
}

#[test]
fn mistakes_in_json_have_file_and_line() {
    let deep = format!("1\n{}{}", "[".repeat(1000), "]".repeat(1000));
    let long = |bytes: usize| format!("1\n\"{}\"\n2", "x".repeat(bytes - 2));
    for (content, message) in [
        ("", "rows has no rows: expected at least one"),
        (" \n\n", "rows has no rows: expected at least one"),
        ("1\n\n{\"a\": }\n", "rows, line 3: not JSON as expected: expected value, at column 7"),
        ("1\n{\"a\":\n1}\n", "rows, line 2: not JSON as expected: EOF while parsing a value, at column 5"),
        ("1\n  2 3\n", "rows, line 2: not JSON as expected: trailing characters, at column 5"),
        ("1\n1e999\n", "rows, line 2: not JSON as expected: number out of range, at column 5"),
        (&deep, "rows, line 2: not JSON as expected: recursion limit exceeded, at column 128"),
        (&long(MAX_ROW_BYTES + 1), "rows, line 2: the line takes more than 1.00 MiB"),
        (&long(3 * MAX_ROW_BYTES), "rows, line 2: the line takes more than 1.00 MiB"),
    ] {
        assert_eq!(json(content).unwrap_err(), message, "{}", &content[..content.len().min(99)]);
    }
    assert_eq!(json(b"1\n\"\xff\"\n").unwrap_err(), "rows, line 2: it is not UTF-8, which JSON is");
    assert_eq!(json(b"\xfe\xff\0").unwrap_err(), "rows is UTF-16: expected UTF-8");
    assert_eq!(json(long(MAX_ROW_BYTES)).unwrap().len(), 3);
    assert!(json(" ".repeat(2 * MAX_ROW_BYTES)).unwrap_err().contains("more than 1.00 MiB"));
}

#[test]
fn rows_of_a_list_stay_in_the_script() {
    let set = list(3);
    assert!(matches!(set.get(2), Some(Row::Listed(2))));
    assert!(set.get(3).is_none());
    assert_eq!(list(0).len(), 0);
    let message = load("", Declaration::list(MAX_ROWS + 1)).unwrap_err();
    assert_eq!(message, "the list has 100000001 rows: expected at most 100,000,000 rows");
}

#[test]
fn a_set_without_rows_gives_none() {
    let mut declaration = Declaration::list(0);
    for wrap in [false, true] {
        declaration.wrap = wrap;
        let set = load("", declaration.clone()).unwrap();
        assert_eq!((set.own(1), set.next(), set.lease(7)), (None, None, None));
        assert!(!set.release(0) && set.get(0).is_none());
    }
}

#[test]
fn each_user_has_its_own_row() {
    let set = list(3);
    assert_eq!([1, 2, 3, 4, 7, 300].map(|user| set.own(user)), [0, 1, 2, 0, 0, 2].map(Some));
    assert_eq!(set.own(0), Some(0));
}

#[test]
fn rows_come_in_turn_and_end_or_begin_again() {
    let set = list(3);
    let all: Vec<_> = (0..5).map(|_| set.next()).collect();
    assert_eq!(all, [Some(0), Some(1), Some(2), None, None]);
    set.reset();
    assert_eq!(set.next(), Some(0));
    let wraps = Declaration { wrap: true, ..Declaration::list(3) };
    let set = load("", wraps).unwrap();
    assert!((0..9).map(|_| set.next().unwrap()).eq([0, 1, 2, 0, 1, 2, 0, 1, 2]));
}

#[test]
fn threads_take_each_row_once() {
    let (set, taken) = (list(10_000), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let rows: Vec<usize> = std::iter::from_fn(|| set.next()).collect();
                taken.lock().unwrap().extend(rows);
            });
        }
    });
    let mut taken = taken.into_inner().unwrap();
    taken.sort_unstable();
    assert!(taken.into_iter().eq(0..10_000));
}

#[test]
fn threads_never_hold_the_same_row() {
    let (set, held) = (list(50), Mutex::new(HashSet::new()));
    thread::scope(|scope| {
        for seed in 0..4 {
            let (set, held) = (&set, &held);
            scope.spawn(move || {
                let (mut random, mut mine) = (fastrand::Rng::with_seed(seed), Vec::new());
                for _ in 0..20_000 {
                    if random.bool() {
                        let Some(row) = set.lease(random.u64(..)) else { continue };
                        assert!(held.lock().unwrap().insert(row), "{row} is leased twice");
                        mine.push(row);
                    } else if let Some(row) = mine.pop() {
                        held.lock().unwrap().remove(&row);
                        assert!(set.release(row));
                    }
                }
            });
        }
    });
    let leased = held.into_inner().unwrap().len();
    let free = std::iter::from_fn(|| set.lease(0)).count();
    assert_eq!(leased + free, 50);
    set.reset();
    assert!(!set.release(0));
    assert_eq!(std::iter::from_fn(|| set.lease(u64::MAX)).count(), 50);
    assert!(!set.release(50) && !set.release(usize::MAX));
}

#[test]
fn each_machine_has_its_part() {
    let content = b"n\n0\n1\n2\n3\n4\n5\n6\n";
    let parts: Vec<Set> = (0..3).map(|index| split(Declaration::csv("rows"), content, index, 3).unwrap()).collect();
    assert_eq!(fields(&parts[0]), [[b"0"], [b"3"], [b"6"]]);
    assert_eq!(fields(&parts[1]), [[b"1"], [b"4"]]);
    assert_eq!(fields(&parts[2]), [[b"2"], [b"5"]]);
    assert_eq!((parts[1].own(3), parts[1].len()), (Some(0), 2));
    let lines = split(Declaration::json_lines("rows"), b"0\n1\n\n2\n3", 1, 2).unwrap();
    assert_eq!(texts(&lines), ["1", "3"]);
    let list = split(Declaration::list(7), b"", 2, 3).unwrap();
    assert!(matches!((list.get(1), list.get(2)), (Some(Row::Listed(5)), None)));

    let message = split(Declaration::csv("rows"), b"n\n0\n1\n", 2, 3).unwrap_err();
    assert_eq!(message, "rows has 2 rows, to be split over 3 machines: expected at least one for each");
    // A mistake in another machine's rows is one here, too.
    assert!(split(Declaration::csv("rows"), b"n\n0\n1,2\n", 0, 2).unwrap_err().starts_with("rows, line 3"));
    let whole = Set::load(Declaration::csv("rows"), &files(&folder(content)), Part::new(2, 3)).unwrap();
    assert_eq!(whole.len(), 7);
    assert_eq!((Part::new(0, 1), whole.is_everywhere()), (Part::WHOLE, true));
}

#[test]
fn threads_share_the_sets_that_all_declare() {
    let folder = folder("n\n1\n2\n");
    let sets = Arc::new(Sets::new(&files(&folder), Part::WHOLE));
    let declare = || {
        let mut declarations = Declarations::new(&sets);
        let file = declarations.declare(Declaration::csv("rows")).unwrap();
        let list = declarations.declare(Declaration::list(3)).unwrap();
        // The same file again is another set, with its own leases.
        let again = declarations.declare(Declaration::csv("rows")).unwrap();
        declarations.complete().unwrap();
        [file, list, again]
    };
    let loaded: Vec<[Arc<Set>; 3]> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(declare)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let all = sets.all();
    assert_eq!(all.len(), 3);
    for thread in &loaded {
        assert!(thread.iter().zip(&all).all(|(here, set)| Arc::ptr_eq(here, set)));
    }
    assert_eq!((all[0].next(), all[0].next(), all[2].next()), (Some(0), Some(1), Some(0)));
    sets.reset();
    assert_eq!((all[0].next(), all[2].next()), (Some(0), Some(0)));
}

#[test]
fn a_thread_that_declares_other_sets_is_told_both() {
    let folder = folder("n\n1\n");
    let sets = Arc::new(Sets::new(&files(&folder), Part::WHOLE));
    let mut first = Declarations::new(&sets);
    first.declare(Declaration::csv("rows")).unwrap();
    first.declare(Declaration::list(3)).unwrap();
    let expected = "expected the same sets in the same order on all threads";

    let mut other = Declarations::new(&sets);
    let wraps = Declaration {
        origin: Origin::Csv { separator: b'\t', header: false },
        wrap: true,
        split: true,
        ..Declaration::csv("rows")
    };
    let options = r#"{ separator = "\t", header = false, wrap = true, split = true }"#;
    let differs =
        |here: &str, there: &str| format!("this thread declares {here} where another one declared {there}: {expected}");
    let (here, there) = (format!("data.csv(\"rows\", {options})"), "data.csv(\"rows\")");
    assert_eq!(other.declare(wraps).unwrap_err(), differs(&here, there));
    other.declare(Declaration::csv("rows")).unwrap();
    let (four, three) = ("data.list(a table of 4)", "data.list(a table of 3)");
    assert_eq!(other.declare(Declaration::list(4)).unwrap_err(), differs(four, three));
    assert_eq!(other.complete().unwrap_err(), differs("nothing more", three));
    let json = first.declare(Declaration::json_lines("rows")).unwrap_err();
    assert_eq!(json, differs("data.jsonl(\"rows\")", "nothing more"));
}

#[test]
fn a_set_that_cannot_be_loaded_is_no_set() {
    let folder = folder("n\n");
    let sets = Arc::new(Sets::new(&files(&folder), Part::WHOLE));
    let mut declarations = Declarations::new(&sets);
    declarations.declare(Declaration::csv("rows")).unwrap_err();
    for _ in 0..MAX_SETS {
        declarations.declare(Declaration::list(1)).unwrap();
    }
    let message = declarations.declare(Declaration::list(2)).unwrap_err();
    assert_eq!(message, "data.list(a table of 2) is one set too many: expected at most 1,000 sets");
}

#[test]
fn a_million_rows_take_their_text_and_four_bytes_per_field() {
    const ROWS: usize = 1_000_000;
    let (mut csv, mut json, mut text) = (String::from("id,name,password\n"), String::new(), 0);
    for row in 0..ROWS {
        let (name, password) = (format!("user{row}"), format!("secret{row}"));
        text += row.to_string().len() + name.len() + password.len();
        writeln!(csv, "{row},{name},\"{password}\"").unwrap();
        writeln!(json, r#"{{"id":{row},"name":"{name}","password":"{password}"}}"#).unwrap();
    }
    let set = self::csv(&csv).unwrap();
    assert_eq!(set.get(ROWS - 1).unwrap().column("name"), Some(Value::Text(b"user999999")));
    let Rows::Fields(table) = &set.rows else { panic!("{:?}", set.declaration) };
    assert_eq!(table.bytes(), text + ROWS * 3 * 4);
    let set = self::json(&json).unwrap();
    assert_eq!(set.get(ROWS - 1).unwrap().column("name"), Some(Value::Json("user999999".into())));
    let Rows::Json(cells) = &set.rows else { panic!("{:?}", set.declaration) };
    assert_eq!(cells.bytes(), json.len() - ROWS + ROWS * 4);
}

/// A row as a CSV writer would write it: all fields quoted, or only those that must be.
fn written(row: &[Vec<u8>], always: bool, end: &[u8]) -> Vec<u8> {
    let field = |field: &Vec<u8>| {
        let quoted = always || row.len() == 1 || field.iter().any(|byte| b",\"\r\n".contains(byte));
        if !quoted {
            return field.clone();
        }
        let inner = field.iter().flat_map(|&byte| if byte == b'"' { vec![b'"', b'"'] } else { vec![byte] });
        [b'"'].into_iter().chain(inner).chain([b'"']).collect()
    };
    [row.iter().map(field).collect::<Vec<_>>().join(&b','), end.to_vec()].concat()
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(b'x'), Just(b'"'), Just(b','), Just(b'\n'), Just(b'\r'), any::<u8>()];
    prop::collection::vec(byte, 0..12)
}

proptest! {
    #[test]
    fn what_was_written_is_read(
        rows in (1usize..5).prop_flat_map(|width| {
            prop::collection::vec(prop::collection::vec(bytes(), width), 1..20)
        }),
        always in any::<bool>(),
        crlf in any::<bool>(),
        cut in any::<bool>(),
    ) {
        let end: &[u8] = if crlf { b"\r\n" } else { b"\n" };
        let mut content: Vec<u8> = rows.iter().flat_map(|row| written(row, always, end)).collect();
        if cut {
            content.truncate(content.len() - end.len());
        }
        // Else it is a mark, or UTF-16.
        prop_assume!(content[0] < 0x80);
        prop_assert_eq!(fields(&without_header(&content).unwrap()), rows);
    }

    #[test]
    fn no_content_makes_a_panic(content in prop::collection::vec(bytes(), 0..30), part in 0usize..3) {
        let content = content.concat();
        for declaration in [Declaration::csv("rows"), Declaration::json_lines("rows")] {
            if let Ok(set) = split(declaration, &content, part, 3) {
                prop_assert!((0..set.len()).all(|index| set.get(index).is_some()));
            }
        }
    }

    #[test]
    fn a_mistake_has_the_line_of_its_row(
        before in prop::collection::vec(("[a-z]{0,3}(\n|\r\n){0,2}[a-z]{1,3}", 1usize..4), 0..20),
        crlf in any::<bool>(),
    ) {
        let end = if crlf { "\r\n" } else { "\n" };
        let mut content = format!("a,b{end}");
        for (field, ends) in before {
            write!(content, "1,\"{field}\"{}", end.repeat(ends)).unwrap();
        }
        let line = content.matches('\n').count() + 1;
        content += "1,2,3";
        let message = csv(content).unwrap_err();
        prop_assert!(message.starts_with(&format!("rows, line {line}: ")), "{}", message);
    }
}
