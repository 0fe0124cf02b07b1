// Annotations of locks and of what they guard, with which clang proves that guarded data is used
// under its lock (`./dev lint`; g++ ignores them).
//
//   Mutex mutex_;
//   int count_ FARPAGE_GUARDED_BY(mutex_) = 0;   // used only while mutex_ is held
//   void add() FARPAGE_REQUIRES(mutex_);         // called only while mutex_ is held
//
// clang looks at one function at a time, and not at constructors and destructors. A lambda is a
// function: a predicate that reads guarded data says so, as in
// changed_.wait(lock, [this]() FARPAGE_REQUIRES(mutex_) { return stop_; }).
#pragma once

#ifdef __clang__
#define FARPAGE_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define FARPAGE_THREAD_ANNOTATION(x)
#endif

#define FARPAGE_CAPABILITY(name) FARPAGE_THREAD_ANNOTATION(capability(name))
#define FARPAGE_SCOPED_CAPABILITY FARPAGE_THREAD_ANNOTATION(scoped_lockable)
// Of a member: it is used only while the mutex is held.
#define FARPAGE_GUARDED_BY(mutex) FARPAGE_THREAD_ANNOTATION(guarded_by(mutex))
// Of a function: the mutex is held when it is called, and when it returns.
#define FARPAGE_REQUIRES(...) FARPAGE_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define FARPAGE_ACQUIRE(...) FARPAGE_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define FARPAGE_RELEASE(...) FARPAGE_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define FARPAGE_TRY_ACQUIRE(...) FARPAGE_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
// Of a function: no other thread exists while it runs.
#define FARPAGE_NO_THREAD_SAFETY_ANALYSIS FARPAGE_THREAD_ANNOTATION(no_thread_safety_analysis)
// Of a function: it returns a reference to that mutex.
#define FARPAGE_RETURNS_MUTEX(mutex) FARPAGE_THREAD_ANNOTATION(lock_returned(mutex))
