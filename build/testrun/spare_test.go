package main

import "testing"

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
