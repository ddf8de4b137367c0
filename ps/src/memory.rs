//! Zeroed memory for large arrays: whole huge pages where the system has them, untouched until first used.
//!
//! A first touch may wait for the kernel to clear a page (2 MiB at a time with huge pages). Why not `Vec`: an index
//! of a million slots must not be cleared at once (a stall), and `madvise(MADV_HUGEPAGE)` must come before the first
//! touch.

use std::mem::size_of;
use std::ptr::NonNull;

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// The size of the pages of an array of so many bytes.
pub(crate) const fn page_of(bytes: usize) -> usize {
    if bytes >= HUGE { HUGE } else { 4096 }
}

/// Types whose all-zero bytes are a valid value.
///
/// # Safety
/// Zero bytes must be a valid value, and the type must own nothing (no `Drop`).
pub(crate) unsafe trait Zeroed: Copy {}

// SAFETY: zero bytes are 0.0.
unsafe impl Zeroed for f32 {}

/// A fixed array of zeroed elements that never moves.
pub(crate) struct Pages<T: Zeroed> {
    at: NonNull<T>,
    len: usize,
    bytes: usize,
}

// SAFETY: `Pages` owns its memory alone, as a `Vec` does.
unsafe impl<T: Zeroed + Send> Send for Pages<T> {}
// SAFETY: shared access is read only, as for a `Vec`.
unsafe impl<T: Zeroed + Sync> Sync for Pages<T> {}

impl<T: Zeroed> Pages<T> {
    /// `len` zeroed elements, or `None` when the system has no memory for them.
    pub(crate) fn zeroed(len: usize) -> Option<Self> {
        let bytes = len.checked_mul(size_of::<T>())?.max(1);
        let bytes = bytes.checked_next_multiple_of(page_of(bytes))?;
        let at = NonNull::new(system::map(bytes)?.cast::<T>())?;
        Some(Self { at, len, bytes })
    }

    /// Gives the memory of elements from `first` up to `end` back, in whole huge pages and where the system can. They are
    /// zeros afterwards, or what they were.
    pub(crate) fn release(&mut self, first: usize, end: usize) {
        let page = |element: usize| element * size_of::<T>() / HUGE;
        let (first, end) = (page(first), page(end.min(self.len)));
        if first < end {
            // SAFETY: whole pages within this allocation, which is aligned to them when it has any; `&mut self` is the
            // only access, and zeros are valid elements.
            unsafe { system::release(self.at.as_ptr().cast::<u8>().add(first * HUGE), (end - first) * HUGE) }
        }
    }

    /// Bytes taken from the system (resident only once touched).
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that are resident once the first `elements` were touched.
    pub(crate) fn bytes_of_first(&self, elements: usize) -> usize {
        (elements * size_of::<T>()).next_multiple_of(page_of(self.bytes)).min(self.bytes)
    }
}

impl<T: Zeroed> std::ops::Deref for Pages<T> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `at` is the start of `len` elements that live as long as `self`; zero bytes are valid values.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<T: Zeroed> std::ops::DerefMut for Pages<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl<T: Zeroed> Drop for Pages<T> {
    fn drop(&mut self) {
        // SAFETY: `map` gave this address for this many bytes, and nothing borrows them any more.
        unsafe { system::unmap(self.at.as_ptr().cast(), self.bytes) }
    }
}

#[cfg(unix)]
mod system {
    use super::HUGE;

    /// `bytes` of zeroed memory (a multiple of the page size), aligned to a huge page when at least as large as one.
    pub(super) fn map(bytes: usize) -> Option<*mut u8> {
        let room = if bytes >= HUGE { bytes.checked_add(HUGE)? } else { bytes };
        // SAFETY: a fresh anonymous mapping touches no memory of ours.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                room,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return None;
        }
        let start = start.cast::<u8>();
        if room == bytes {
            return Some(start);
        }
        let before = start.align_offset(HUGE);
        let aligned = start.wrapping_add(before);
        // SAFETY: both ends lie within the mapping just made and are not handed out; lengths are multiples of
        // the page size since `HUGE`, `bytes` and the mapping's address are.
        unsafe {
            if before > 0 {
                libc::munmap(start.cast(), before);
            }
            if HUGE > before {
                libc::munmap(aligned.wrapping_add(bytes).cast(), HUGE - before);
            }
            #[cfg(target_os = "linux")]
            libc::madvise(aligned.cast(), bytes, libc::MADV_HUGEPAGE);
        }
        Some(aligned)
    }

    /// # Safety
    /// Whole pages of memory from [`map`] that nothing borrows and that may become zeros.
    pub(super) unsafe fn release(at: *mut u8, bytes: usize) {
        // SAFETY: promised by the caller. Only Linux promises zeros; elsewhere the memory is kept.
        #[cfg(target_os = "linux")]
        unsafe {
            libc::madvise(at.cast(), bytes, libc::MADV_DONTNEED);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (at, bytes);
    }

    /// # Safety
    /// `at` and `bytes` are those of one [`map`], not yet unmapped.
    pub(super) unsafe fn unmap(at: *mut u8, bytes: usize) {
        // SAFETY: promised by the caller.
        unsafe {
            libc::munmap(at.cast(), bytes);
        }
    }
}

#[cfg(not(unix))]
mod system {
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 64).expect("sizes come from `Pages::zeroed`, which rounds them without overflow")
    }

    pub(super) fn map(bytes: usize) -> Option<*mut u8> {
        let layout = Layout::from_size_align(bytes, 64).ok()?;
        // SAFETY: the size is not zero.
        let at = unsafe { alloc_zeroed(layout) };
        (!at.is_null()).then_some(at)
    }

    /// # Safety
    /// None needed: the memory is kept.
    pub(super) unsafe fn release(_at: *mut u8, _bytes: usize) {}

    /// # Safety
    /// `at` and `bytes` are those of one [`map`], not yet unmapped.
    pub(super) unsafe fn unmap(at: *mut u8, bytes: usize) {
        // SAFETY: promised by the caller.
        unsafe { dealloc(at, layout(bytes)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_zeroed_aligned_and_writable_to_both_ends() {
        for len in [1, 1000, HUGE / 4, HUGE / 4 + 1, 3 * HUGE / 4] {
            let mut pages = Pages::<f32>::zeroed(len).unwrap();
            assert_eq!(pages.len(), len);
            assert!(pages.iter().all(|v| v.to_bits() == 0));
            assert_eq!(pages.as_ptr() as usize % 64, 0);
            if len * 4 >= HUGE {
                assert_eq!(pages.as_ptr() as usize % HUGE, 0);
            }
            pages[0] = 1.0;
            pages[len - 1] = 2.0;
            assert_eq!(pages[len - 1], 2.0);
        }
    }

    #[test]
    fn releases_whole_pages_only() {
        let words = HUGE / 4;
        let mut pages = Pages::<f32>::zeroed(3 * words).unwrap();
        pages.fill(1.0);
        pages.release(10, words - 1);
        assert!(pages.iter().all(|v| *v == 1.0));
        pages.release(10, 2 * words + 5);
        assert!(pages[2 * words..].iter().all(|v| *v == 1.0));
        let wanted = if cfg!(target_os = "linux") { 0.0 } else { 1.0 };
        assert!(pages[..2 * words].iter().all(|v| *v == wanted));
    }

    #[test]
    fn refuses_what_no_machine_has() {
        assert!(Pages::<f32>::zeroed(usize::MAX / 2).is_none());
        assert!(Pages::<f32>::zeroed(1 << 60).is_none());
    }
}
