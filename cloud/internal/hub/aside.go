package hub

import (
	"fmt"
	"runtime/debug"
)

// Aside calls f on a stack of its own and returns what it returns. A goroutine that has once needed a large stack keeps it for as long as it waits with more
// than a quarter in use, and those that wait for an idle node are thousands: so what waits does its work aside. It costs a microsecond. A panic of f is the
// caller's, and tells where it came from.
func Aside(f func() error) error {
	type result struct {
		err      error
		panicked any
	}
	done := make(chan result, 1)
	go func() {
		r := result{panicked: "the goroutine was ended"} // by runtime.Goexit, unless one of the two below happens
		defer func() {
			if p := recover(); p != nil {
				r.panicked = fmt.Sprintf("%v\n%s", p, debug.Stack())
			}
			done <- r
		}()
		err := f()
		r = result{err: err}
	}()
	r := <-done
	if r.panicked != nil {
		panic(r.panicked)
	}
	return r.err
}
