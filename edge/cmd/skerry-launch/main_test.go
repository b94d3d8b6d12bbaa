package main

import (
	"testing"

	"github.com/skerry-io/skerry/common/notifytest"
)

func TestNotifyWatchdog(t *testing.T) {
	systemd := notifytest.New(t)
	if err := notifyWatchdog(); err != nil {
		t.Fatal(err)
	}
	if got := systemd.Hear(); got != "WATCHDOG=1" {
		t.Errorf("%q, want WATCHDOG=1", got)
	}
	t.Setenv("NOTIFY_SOCKET", "")
	if err := notifyWatchdog(); err != nil {
		t.Errorf("without systemd: %v", err)
	}
}
