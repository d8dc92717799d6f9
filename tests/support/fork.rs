//! A child made by `fork`.

/// Runs `body` in a child, and panics unless it returns there within a minute.
pub fn in_child(body: impl FnOnce()) {
    // SAFETY: the child calls nothing of this test's harness, and ends without its exit handlers.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: plain calls; a child that hangs is ended by the signal.
        unsafe { libc::alarm(60) };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    let mut status = 0;
    // SAFETY: our own child, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "the child ended with status {status:#x}: {}",
        match libc::WIFSIGNALED(status) {
            true => format!("signal {}", libc::WTERMSIG(status)),
            false => format!("exit code {}", libc::WEXITSTATUS(status)),
        }
    );
}
