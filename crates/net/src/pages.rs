//! Memory straight from the kernel, in huge pages if large: for tables with random access.
//!
//! The CPU caches address translations for a few thousand pages. In a hundred megabytes of 4 KiB pages, nearly every
//! random access misses that cache as well as the data caches; 2 MiB pages all fit.
#![allow(unsafe_code)]

use std::alloc::{Layout, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::param::page_size;

/// Rows of `N` words, initially zero.
///
/// The first row is at the start of a page; from [`HUGE`] bytes on, at the start of a huge page. Pages without a
/// written row take no memory.
pub struct Pages<const N: usize> {
    rows: NonNull<[u64; N]>,
    len: usize,
}

/// The size of a huge page on x86-64, and on ARM with 4 KiB pages. Elsewhere, pages have the usual size.
pub const HUGE: usize = 2 << 20;

impl<const N: usize> Pages<N> {
    /// Allocates `len` rows. Ends the process without memory, as any allocation does.
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Pages { rows: NonNull::dangling(), len };
        }
        let layout = Layout::array::<[u64; N]>(len).expect("no address space is so large");
        match map(mapped(layout.size())) {
            Some(start) => Pages { rows: start.cast(), len },
            None => handle_alloc_error(layout),
        }
    }

    /// Bytes that `len` rows take once all pages are written.
    pub fn bytes(len: usize) -> usize {
        mapped(len * size_of::<[u64; N]>())
    }
}

impl<const N: usize> Deref for Pages<N> {
    type Target = [[u64; N]];

    #[inline]
    fn deref(&self) -> &[[u64; N]] {
        // SAFETY: `len` rows are mapped there until this is dropped, and belong to it alone; the kernel gives zeros,
        // and any bits are a row.
        unsafe { slice::from_raw_parts(self.rows.as_ptr(), self.len) }
    }
}

impl<const N: usize> DerefMut for Pages<N> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [[u64; N]] {
        // SAFETY: as above, with exclusive access.
        unsafe { slice::from_raw_parts_mut(self.rows.as_ptr(), self.len) }
    }
}

impl<const N: usize> Default for Pages<N> {
    fn default() -> Self {
        Pages::zeroed(0)
    }
}

impl<const N: usize> Drop for Pages<N> {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: `zeroed` has mapped this many bytes there, and all borrows have ended.
            unsafe { unmap(self.rows.as_ptr().cast(), Self::bytes(self.len)) };
        }
    }
}

impl<const N: usize> fmt::Debug for Pages<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows of {N} words", self.len)
    }
}

// SAFETY: the memory belongs to this value alone, as in a boxed slice.
unsafe impl<const N: usize> Send for Pages<N> {}
// SAFETY: as above; shared access only reads.
unsafe impl<const N: usize> Sync for Pages<N> {}

/// Rounds bytes up to whole pages.
fn mapped(bytes: usize) -> usize {
    bytes.next_multiple_of(page_size())
}

/// Maps whole pages of zeros; `None` without memory.
fn map(bytes: usize) -> Option<NonNull<u8>> {
    // A mapping begins at any page, so this maps one huge page more, and unmaps the ends.
    let spare = if bytes >= HUGE { HUGE - page_size() } else { 0 };
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: without an address the kernel chooses one where nothing is mapped.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes.checked_add(spare)?, protection, flags) }.ok()?;
    if spare == 0 {
        return NonNull::new(start.cast());
    }
    let before = start.addr().next_multiple_of(HUGE) - start.addr();
    // SAFETY: `before` is at most `spare`, so these are the two ends of the new mapping, and nothing uses them.
    unsafe {
        unmap(start.cast(), before);
        unmap(start.cast::<u8>().add(before + bytes), spare - before);
    }
    // SAFETY: `bytes` bytes follow `before` within the mapping.
    let start = unsafe { start.cast::<u8>().add(before) };
    // SAFETY: the advice changes the type of the pages, not their contents. A kernel without huge pages refuses it,
    // without effect.
    let _ = unsafe { madvise(start.cast(), bytes, Advice::LinuxHugepage) };
    NonNull::new(start)
}

/// Unmaps pages.
///
/// # Safety
/// They are mapped, and nothing uses them any more.
unsafe fn unmap(start: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: as promised. It fails only if it would split a mapping beyond the kernel's limit; then the pages
        // stay.
        let _ = unsafe { munmap(start.cast(), bytes) };
    }
}

#[cfg(test)]
mod tests {
    use procfs::process::{MMapPath, Process};

    use super::*;

    #[test]
    fn rows_are_zero_and_stay_as_they_were_written() {
        // First, and not concurrently: the kernel merges two neighbouring mappings.
        no_more_is_mapped_than_is_used();
        for len in [0, 1, 127, 128, 129, HUGE / 32 - 1, HUGE / 32, 3 * HUGE / 32 + 1] {
            let mut pages = Pages::<4>::zeroed(len);
            assert_eq!(pages.len(), len);
            assert!(pages.iter().all(|row| *row == [0; 4]));
            pages.iter_mut().enumerate().for_each(|(n, row)| row[n % 4] = n as u64);
            assert!(pages.iter().enumerate().all(|(n, row)| row[n % 4] == n as u64));
            let aligned = if len >= HUGE / 32 { HUGE } else { page_size() };
            assert!(len == 0 || pages.as_ptr().addr().is_multiple_of(aligned), "{len}");
        }
    }

    /// By the kernel's own account: the ends are unmapped at once, the rest on drop.
    fn no_more_is_mapped_than_is_used() {
        let len = 5 * HUGE / 2 / 32;
        let pages = Pages::<4>::zeroed(len);
        let (start, end) = (pages.as_ptr().addr() as u64, pages.as_ptr_range().end.addr() as u64);
        let maps = || Process::myself().unwrap().smaps().unwrap().0;
        let its = maps().into_iter().find(|map| map.address.0 <= start && start < map.address.1).unwrap();
        assert_eq!((its.address, its.pathname), ((start, end), MMapPath::Anonymous));
        assert_eq!(Pages::<4>::bytes(len) as u64, end - start);
        drop(pages);
        assert!(!maps().iter().any(|map| map.address == (start, end)));
    }
}
