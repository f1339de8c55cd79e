use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// Even numbers fit into the table, odd ones do not.
impl Value for u32 {
    fn to_word(&self) -> Option<u64> {
        self.is_multiple_of(2).then_some(u64::from(*self))
    }

    fn from_word(word: u64) -> Self {
        word as u32
    }

    fn heap_bytes(&self) -> usize {
        *self as usize
    }
}

fn cache(entries: usize) -> Cache<u32, u32> {
    Cache::new(Bounds { entries, bytes: usize::MAX }, KeyHash::default())
}

fn hash(cache: &Cache<u32, u32>, key: &str) -> Fingerprint {
    cache.key_hash.of(key.as_bytes())
}

/// Meta and note name the entry that they belong to.
fn insert(cache: &mut Cache<u32, u32>, key: &str, value: u32) {
    cache.insert(hash(cache, key), key.as_bytes(), value, !u64::from(value), value);
}

fn get(cache: &mut Cache<u32, u32>, key: &str) -> Option<u32> {
    let hit = cache.get(hash(cache, key))?;
    let value = cache.value(hit);
    assert_eq!((cache.meta(hit), *cache.note(hit)), (!u64::from(value), value));
    Some(value)
}

#[test]
fn a_scan_pushes_out_nothing_that_is_in_use() {
    let mut cache = cache(1000);
    let hot: Vec<String> = (0..500).map(|n| format!("hot-{n}")).collect();
    for _ in 0..3 {
        for key in &hot {
            if get(&mut cache, key).is_none() {
                insert(&mut cache, key, 1);
            }
        }
    }
    for n in 0..100_000 {
        insert(&mut cache, &format!("scan-{n}"), 0);
    }
    let kept = hot.iter().filter(|key| get(&mut cache, key).is_some()).count();
    assert_eq!((kept, cache.len()), (500, 1000));
}

#[test]
fn what_comes_back_stays() {
    let mut cache = cache(1000);
    for n in 0..1100 {
        insert(&mut cache, &format!("{n}"), 0);
    }
    assert_eq!(get(&mut cache, "0"), None);
    // The cache remembers most (a few hashes share a position), so they go into the main queue, where a scan cannot
    // evict them.
    for n in 0..50 {
        insert(&mut cache, &format!("{n}"), 0);
    }
    for n in 0..2000 {
        insert(&mut cache, &format!("other-{n}"), 0);
    }
    let kept = (0..50).filter(|n| get(&mut cache, &n.to_string()).is_some()).count();
    assert!(kept >= 35, "{kept}");
}

#[test]
fn bytes_are_a_bound_too() {
    let mut cache = Cache::new(Bounds { entries: usize::MAX, bytes: 1_000_000 }, KeyHash::default());
    for n in 0..2000 {
        // Each value is different, and holds a thousand to five thousand bytes.
        insert(&mut cache, &format!("{n}"), 1001 + n * 2);
        assert!(cache.bytes() <= 1_000_000);
    }
    assert!((150..300).contains(&cache.len()), "{}", cache.len());
    assert!(cache.bytes() > 900_000, "{}", cache.bytes());
    // A larger value that replaces another counts as well.
    insert(&mut cache, "1999", 900_001);
    assert!(cache.bytes() <= 1_000_000 && cache.len() < 100);
    // The cache does not keep a value that is larger than its limit.
    insert(&mut cache, "x", 2_000_001);
    assert_eq!((get(&mut cache, "x"), cache.len()), (None, 0));
}

/// A table that grows by half may need more than what is left; it must not evict everything to make room for
/// itself.
#[test]
fn a_table_that_may_not_grow_stays_as_full_as_it_is() {
    for kilobytes in [40, 100, 300, 1000, 3000, 10_000] {
        let bounds = Bounds { entries: usize::MAX, bytes: kilobytes << 10 };
        let mut cache = Cache::new(bounds, KeyHash::default());
        let mut most = 0;
        for n in 0..kilobytes * 40 {
            insert(&mut cache, &format!("{n}"), 0);
            most = most.max(cache.len());
            assert!(cache.bytes() <= bounds.bytes);
            assert!(cache.len() * 10 >= most * 8, "{} of {most} are left", cache.len());
        }
        assert!(cache.bytes() * 2 > bounds.bytes, "{} of {}", cache.bytes(), bounds.bytes);
        assert!(cache.evictions() > 0);
    }
}

#[test]
fn a_small_room_full_of_small_entries_takes_large_ones() {
    let mut cache = Cache::new(Bounds { entries: usize::MAX, bytes: 50_000 }, KeyHash::default());
    for n in 0..5000 {
        insert(&mut cache, &format!("{n}"), 0);
    }
    assert!(cache.len() > 200, "{}", cache.len());
    for n in 0..100 {
        insert(&mut cache, &format!("large-{n}"), 1001 + 2 * n);
        assert!(cache.bytes() <= 50_000 && get(&mut cache, &format!("large-{n}")).is_some());
    }
    assert!(cache.interned.heap_bytes() > 20_000, "{}", cache.interned.heap_bytes());
}

/// Large entries can use the memory of evicted small ones, and a purge frees what it can.
#[test]
fn memory_that_entries_leave_is_used_for_others_or_given_back() {
    let mut cache = Cache::new(Bounds { entries: usize::MAX, bytes: 2_000_000 }, KeyHash::default());
    for n in 0..50_000 {
        insert(&mut cache, &format!("{n}"), 0);
    }
    assert!(cache.len() > 10_000 && cache.bytes() > 1_000_000, "{}, {}", cache.len(), cache.bytes());
    // Each of these takes a hundred times as much, and unused ones are evicted.
    for n in 0..5000 {
        get(&mut cache, "49999");
        insert(&mut cache, &format!("large-{n}"), 4001 + n * 2 % 100);
        assert!(cache.bytes() <= 2_000_000);
    }
    assert!(get(&mut cache, "49999").is_some());
    // Each value is stored once, so there are 50 of these; the rest is for keys.
    assert!(cache.interned.heap_bytes() > 200_000);
    for n in 0..5000 {
        insert(&mut cache, &format!("larger-{n}"), 10_001 + n * 2);
        assert!(cache.bytes() <= 2_000_000);
    }
    assert!(cache.interned.heap_bytes() > 1_000_000, "{}", cache.interned.heap_bytes());
    let kept = cache.len();
    assert_eq!(cache.retain(|key| key == b"49999"), kept - usize::from(get(&mut cache, "49999").is_some()));
    assert!(cache.bytes() < 100_000, "{}", cache.bytes());
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u8, u32),
    Get(u8),
    Remove(u8),
    Retain(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (any::<u8>(), 0u32..100).prop_map(|(key, value)| Step::Insert(key, value)),
        6 => any::<u8>().prop_map(Step::Get),
        2 => any::<u8>().prop_map(Step::Remove),
        1 => any::<u8>().prop_map(Step::Retain),
    ]
}

proptest! {
    #[test]
    fn it_is_a_map_that_forgets(entries in 1usize..60, steps in prop::collection::vec(step(), 0..500)) {
        let (mut cache, mut model) = (cache(entries), BTreeMap::new());
        // Every third key is too long for its slot.
        let long = |key: u8| format!("{key}-{}", "x".repeat(40));
        let name = |key: u8| if key.is_multiple_of(3) { long(key) } else { key.to_string() };
        for step in steps {
            match step {
                Step::Insert(key, value) => {
                    insert(&mut cache, &name(key), value);
                    model.insert(key, value);
                }
                Step::Get(key) => {
                    let found = get(&mut cache, &name(key));
                    prop_assert!(found.is_none() || found.as_ref() == model.get(&key));
                }
                Step::Remove(key) => {
                    let was = cache.remove(hash(&cache, &name(key)));
                    let expected = model.remove(&key);
                    prop_assert!(was.is_none() || was == expected);
                    prop_assert_eq!(get(&mut cache, &name(key)), None);
                }
                Step::Retain(start) => {
                    let start = (start % 10).to_string();
                    cache.retain(|key| !key.starts_with(start.as_bytes()));
                    model.retain(|&key, _| !name(key).starts_with(&start));
                }
            }
            let is_kept = |&key: &u8| cache.peek(hash(&cache, &name(key))).is_some();
            let kept: Vec<u8> = model.keys().copied().filter(is_kept).collect();
            prop_assert_eq!(kept.len(), cache.len());
            prop_assert!(cache.len() <= entries);
            let keys: usize = kept.iter().map(|&key| Key::new(name(key).as_bytes()).heap_bytes()).sum();
            prop_assert_eq!(keys, cache.key_bytes);
            let values: BTreeSet<u32> = kept.iter().map(|key| model[key]).filter(|value| value % 2 == 1).collect();
            prop_assert_eq!(values.iter().map(|&value| value as usize).sum::<usize>(), cache.interned.heap_bytes());
            prop_assert_eq!(cache.queued() + cache.free.len(), cache.keys.len());
        }
    }
}
