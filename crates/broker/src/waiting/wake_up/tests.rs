mod under_loom;
mod without_fence;

/// loom's lock, with the calls of the one that it stands for.
#[derive(Default)]
struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    fn new(value: T) -> Mutex<T> {
        Mutex(loom::sync::Mutex::new(value))
    }

    fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}
