package main

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// spareInterval is how often the machine is asked whether it has room for one more job.
	spareInterval = 20 * time.Second
	// spareIdle is the share of the processors' time that must have been idle since: tests wait for
	// most of their time, and more so on a fast machine.
	spareIdle = 0.25
	// spareMemory is what must be available, in bytes: a trial takes some 2 GB, a link up to 3 GB.
	spareMemory = 6 << 30
	// mostSpare bounds the jobs that run in addition to those of LANES.
	mostSpare = 3
)

// spareJobs runs jobs in addition to those of the lanes, one more after each interval in which room
// reports true. It returns when stop is closed and its jobs have ended.
func spareJobs(jobs <-chan job, stop <-chan struct{}, room func() bool, run func(job)) {
	var running sync.WaitGroup
	defer running.Wait()
	free := make(chan struct{}, mostSpare) // a bound for the jobs that run here
	ticks := time.NewTicker(spareInterval)
	defer ticks.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticks.C:
		}
		if !room() {
			continue
		}
		select {
		case free <- struct{}{}:
		default:
			continue
		}
		select {
		case j, ok := <-jobs:
			if !ok {
				return
			}
			running.Go(func() {
				defer func() { <-free }()
				run(j)
			})
		case <-stop:
			return
		}
	}
}

// roomOfThisMachine returns a function that reports whether one more job may start, by the time
// since it was called last.
func roomOfThisMachine() func() bool {
	before := readMachine()
	return func() bool {
		now := readMachine()
		defer func() { before = now }()
		return hasRoom(now.since(before), availableMemory())
	}
}

// hasRoom reports whether one more job may start, by the time that the processors have spent since
// it was last asked and the available memory, in bytes.
func hasRoom(spent machine, available int64) bool {
	all := spent.User + spent.Kernel + spent.Idle + spent.Stolen
	return all > 0 && float64(spent.Idle) >= spareIdle*float64(all) && available >= spareMemory
}

// availableMemory reads MemAvailable of proc_meminfo(5), in bytes: 0 where it can't.
func availableMemory() int64 {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	return memAvailable(raw)
}

func memAvailable(meminfo []byte) int64 {
	for lines := bufio.NewScanner(bytes.NewReader(meminfo)); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(value, "kB")), 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}
