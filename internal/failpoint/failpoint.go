// Package failpoint names the places between two durable steps, so that a test
// can end the process at each of them. In the product nothing is armed and a
// point costs one atomic load. It is not a fault-injection framework: a point
// only calls the test's function.
package failpoint

import (
	"sync"
	"sync/atomic"
)

var (
	hook  atomic.Pointer[func(name string)]
	mu    sync.Mutex
	names = map[string]bool{}
)

// Point is one such place. Make it once, at package level, so that All knows it.
type Point string

// New registers a point. Names are unique; a second one of a name panics.
func New(name string) Point {
	mu.Lock()
	defer mu.Unlock()
	if names[name] {
		panic("failpoint: two points named " + name)
	}
	names[name] = true
	return Point(name)
}

// Hit runs the armed function, if any. Safe for concurrent use.
func (p Point) Hit() {
	if f := hook.Load(); f != nil {
		(*f)(string(p))
	}
}

// Arm makes every Hit call f until the returned function is called. For tests.
func Arm(f func(name string)) (disarm func()) {
	hook.Store(&f)
	return func() { hook.Store(nil) }
}

// All lists the registered names in no order.
func All() []string {
	mu.Lock()
	defer mu.Unlock()
	all := make([]string, 0, len(names))
	for n := range names {
		all = append(all, n)
	}
	return all
}
