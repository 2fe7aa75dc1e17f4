package spawn

import "runtime"

const (
	// kept is how many threads HaveThreads makes. With those that the runtime has by
	// itself they are fewer than a container is allowed beside its commands.
	kept = 16
	// atOnce bounds how many goroutines do at the same time what may hold a thread for
	// long: looking for a program, and through all processes. What else process 1 asks of
	// the kernel is answered at once, or waited for without a thread.
	atOnce = 4
)

// HaveThreads makes the threads that this process will need where they count in one limit
// with the commands. The runtime ends a program for which the kernel makes no thread, so
// commands that have taken all that there is would end their sandbox; a thread that is
// there stays, and is used again. Before the first Spawn, after Alone. gVisor's kernel,
// which has no marks, counts no threads.
func (s *Spawner) HaveThreads() {
	if s.alone == nil || !s.alone.marks {
		return
	}
	up, release := make(chan struct{}), make(chan struct{})
	for range kept {
		go func() {
			// Who waits with a thread of its own makes the runtime take another for the rest.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			up <- struct{}{}
			<-release
		}()
	}
	for range kept {
		<-up
	}
	close(release)
}
