use oroshi_bench::record::scenario::SampleRecord;
use crate::thread::Thread;
use crate::user::User;
#[derive(Debug, Default, Clone)]
pub(crate) struct Sample(SampleRecord);
impl Sample { pub(crate) fn of(thread: &Thread, user: &User, place: String) -> Self {
    let last = user.last.borrow();
    let request = last.as_ref().map(|l| format!("{} {}", l.method, l.url)).unwrap_or_default();
    let head = last.as_ref().map(|l| format!("{} {:?}", l.status, l.error)).unwrap_or_default();
    Sample(SampleRecord { at_s: thread.elapsed_s(), user: user.id, place, request, head, body: String::new() }) } }
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<Sample>);
impl Samples {
    pub(crate) fn add(&mut self, f: impl FnOnce() -> Sample) { if self.0.len() < 5 { self.0.push(f()); } }
    pub(crate) fn merge(&mut self, other: Self) { for s in other.0 { if self.0.len() < 5 { self.0.push(s); } } }
    pub(crate) fn records(&self) -> Vec<SampleRecord> { self.0.iter().map(|s| s.0.clone()).collect() }
}
