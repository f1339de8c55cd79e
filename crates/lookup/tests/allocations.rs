//! A look-up that is answered from memory allocates nothing, whatever stands there.
//! A binary of its own, as `allocation_counter` brings an allocator for all of it.

mod peers;

use oroshi_lookup::{Allow, Lookup, LookupResult, Outcome, SqlTier, Stores, Targets, key};

#[test]
fn an_answer_from_memory_costs_no_allocation() {
    let database = peers::Sqlite::start();
    let stores = Stores::start(vec![peers::sql("db", &database.url())]).unwrap();
    let mut settings = peers::lookup();
    settings.sql = Some(SqlTier { store: "db".to_owned(), query: "SELECT NULL WHERE ? IS NULL".to_owned() });
    let lookup = Lookup::start(settings, &stores).unwrap();
    let long = format!("{}.example", "a".repeat(60));
    let values = [
        ("address.example", "10.0.0.1:81"),
        ("name.example", "app.internal"),
        ("unix.example", "unix:/run/app.sock"),
        ("many.example", r#"["10.0.0.1", "app.internal", "unix:/run/app.sock"]"#),
        (&long, "[::1]:80"),
    ];
    for (key, value) in values {
        lookup.keep(key, Targets::parse(value.as_bytes(), &Allow::any()).unwrap());
    }
    assert_eq!(peers::run(lookup.get("none.example").answer()).outcome, Outcome::Negative);
    for key in values.map(|(key, _)| key).into_iter().chain(["none.example"]) {
        let header = format!("{key}:8080");
        let mut answer = None;
        let counted = allocation_counter::measure(|| {
            answer = Some(lookup.get(&key::host(header.as_bytes()).unwrap()));
        });
        assert!(matches!(answer, Some(LookupResult::Now(_))), "{key}");
        assert_eq!(counted.count_total, 0, "{key}");
    }
}
