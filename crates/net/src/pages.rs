//! Memory straight from the kernel, in huge pages where it is large: for tables in which every access is somewhere else.
//!
//! Finding the physical page behind an address takes the CPU a table of its own, with room for a few thousand pages. In
//! a hundred megabytes of 4 KiB pages nearly every access at random misses there as well as in the caches; 2 MiB pages
//! all fit.
#![allow(unsafe_code)]

use std::alloc::{Layout, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::param::page_size;

/// Rows of `N` words, all zero at first. The first one is at the start of a page; if there are [`HUGE`] bytes or more,
/// at the start of a huge one. Rows that were never written to take no memory, page by page.
pub struct Pages<const N: usize> {
    rows: NonNull<[u64; N]>,
    len: usize,
}

/// The size of a huge page on x86-64, and on ARM with pages of 4 KiB. Where it is another, pages are of the usual size.
pub const HUGE: usize = 2 << 20;

impl<const N: usize> Pages<N> {
    /// So many rows. Where the kernel has no memory for them the process ends, as with any allocation.
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

    /// What so many rows take, once all pages are written to.
    pub fn bytes(len: usize) -> usize {
        mapped(len * size_of::<[u64; N]>())
    }
}

impl<const N: usize> Deref for Pages<N> {
    type Target = [[u64; N]];

    #[inline]
    fn deref(&self) -> &[[u64; N]] {
        // SAFETY: so many rows are mapped there until this is dropped, and belong to it alone; the kernel gives zeros, and any
        // bits are a row.
        unsafe { slice::from_raw_parts(self.rows.as_ptr(), self.len) }
    }
}

impl<const N: usize> DerefMut for Pages<N> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [[u64; N]] {
        // SAFETY: as above, and whoever has this has it exclusively.
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
            // SAFETY: `zeroed` has mapped as much there, and all borrows of it have ended.
            unsafe { unmap(self.rows.as_ptr().cast(), Self::bytes(self.len)) };
        }
    }
}

impl<const N: usize> fmt::Debug for Pages<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows of {N} words", self.len)
    }
}

// SAFETY: the memory belongs to this value alone, as a boxed slice's does.
unsafe impl<const N: usize> Send for Pages<N> {}
// SAFETY: as above; what is shared is read only.
unsafe impl<const N: usize> Sync for Pages<N> {}

/// What is mapped for so many bytes: whole pages.
fn mapped(bytes: usize) -> usize {
    bytes.next_multiple_of(page_size())
}

/// Whole pages of zeros that nothing else has; `None`: there is no memory.
fn map(bytes: usize) -> Option<NonNull<u8>> {
    // A mapping begins anywhere, so there is one huge page too much, of which the ends are given back.
    let spare = if bytes >= HUGE { HUGE - page_size() } else { 0 };
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: without an address the kernel takes one where nothing is mapped.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes.checked_add(spare)?, protection, flags) }.ok()?;
    if spare == 0 {
        return NonNull::new(start.cast());
    }
    let before = start.addr().next_multiple_of(HUGE) - start.addr();
    // SAFETY: `before` is at most `spare`, so these are the two ends of what was mapped just now, and nobody uses them.
    unsafe {
        unmap(start.cast(), before);
        unmap(start.cast::<u8>().add(before + bytes), spare - before);
    }
    // SAFETY: the middle has so many bytes behind `before`.
    let start = unsafe { start.cast::<u8>().add(before) };
    // SAFETY: the advice changes what pages are made of, not what is in them. A kernel without huge pages says no, and all is
    // as it was.
    let _ = unsafe { madvise(start.cast(), bytes, Advice::LinuxHugepage) };
    NonNull::new(start)
}

/// Gives pages back.
///
/// # Safety
/// They are mapped, and nobody uses them any more.
unsafe fn unmap(start: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: as promised. It fails only where a mapping would fall in two and there are too many; then they stay.
        let _ = unsafe { munmap(start.cast(), bytes) };
    }
}

#[cfg(test)]
mod tests {
    use procfs::process::{MMapPath, Process};

    use super::*;

    #[test]
    fn rows_are_zero_and_stay_as_they_were_written() {
        // First, and not beside the rest: the kernel makes one mapping of two that are neighbours.
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

    /// By the kernel's own account: the ends are given back at once, the rest when it is dropped.
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
