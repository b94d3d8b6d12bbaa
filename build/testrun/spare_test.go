package main

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Jobs start one by one while there is room, never more than the bound, and end before it returns.
func TestSpareJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		jobs, stop := make(chan job), make(chan struct{})
		var room atomic.Bool
		var running, most, ran atomic.Int32
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			spareJobs(jobs, stop, room.Load, func(job) {
				most.Store(max(most.Load(), running.Add(1)))
				time.Sleep(10 * time.Minute)
				running.Add(-1)
				ran.Add(1)
			})
		}()
		go func() {
			for {
				select {
				case jobs <- job{}:
				case <-stop:
					return
				}
			}
		}()
		after := func(d time.Duration, want int32) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if n := running.Load(); n != want {
				t.Errorf("%d jobs run after %v more, want %d", n, d, want)
			}
		}
		after(time.Minute, 0)
		room.Store(true)
		after(spareInterval, 1)
		after(spareInterval, 2)
		room.Store(false)
		after(time.Minute, 2)
		room.Store(true)
		after(5*time.Minute, mostSpare)
		close(stop)
		<-ended
		if running.Load() != 0 || most.Load() != mostSpare || ran.Load() < mostSpare {
			t.Errorf("%d run, %d ran, %d at once", running.Load(), ran.Load(), most.Load())
		}
	})
}

func TestHasRoom(t *testing.T) {
	const plenty = 16 << 30
	for name, c := range map[string]struct {
		spent     machine
		available int64
		want      bool
	}{
		"a third is idle":       {machine{User: 20, Kernel: 7, Idle: 13}, plenty, true},
		"busy":                  {machine{User: 28, Kernel: 8, Idle: 4}, plenty, false},
		"the host takes it all": {machine{User: 10, Kernel: 2, Idle: 8, Stolen: 20}, plenty, false},
		"idle without memory":   {machine{User: 5, Kernel: 5, Idle: 30}, 2 << 30, false},
		"no figures":            {machine{}, plenty, false},
	} {
		if got := hasRoom(c.spent, c.available); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestMemAvailable(t *testing.T) {
	for text, want := range map[string]int64{
		"MemTotal:       24000000 kB\nMemAvailable:    6291456 kB\n": 6 << 30,
		"MemTotal:       24000000 kB\n":                              0,
		"MemAvailable:    lots kB\n":                                 0,
	} {
		if got := memAvailable([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
