//! Wishes of a handle, which a task makes come true: the newest counts.
//!
//! They are numbered, so that a handle can wait until the task is done with one, or with a newer one.

use tokio::sync::watch;

/// A wish, and the number of wishes before it.
pub(crate) type Numbered<W> = (u64, W);

/// The handle, the other end of the wishes, was dropped.
pub(crate) struct Dropped;

/// Makes a wish; one that is like the last one changes nothing.
pub(crate) fn wish_for<W: PartialEq>(wishes: &watch::Sender<Numbered<W>>, next: W) {
    wishes.send_if_modified(|(number, wish)| {
        let differs = *wish != next;
        if differs {
            (*number, *wish) = (*number + 1, next);
        }
        differs
    });
}

/// Waits for the end of a pause, or another wish.
pub(crate) async fn or_wish<W>(
    wishes: &mut watch::Receiver<Numbered<W>>,
    pause: impl Future<Output = ()>,
) -> Result<(), Dropped> {
    tokio::select! {
        biased;
        changed = wishes.changed() => changed.map_err(|_| Dropped),
        () = pause => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_wish_has_the_next_number() {
        let (wish, mut wishes) = watch::channel((0, "nothing"));
        wish_for(&wish, "nothing");
        assert!(!wishes.has_changed().expect("its sender is there"));
        wish_for(&wish, "a change");
        assert_eq!(*wishes.borrow_and_update(), (1, "a change"));
    }
}
