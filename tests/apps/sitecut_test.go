package apps_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestClaims_25_CutOfTheSiteMovesNothing: all devices lose the cloud together, for longer than the
// applications' failover.after, and come back: each application has the pod that it had.
func TestClaims_25_CutOfTheSiteMovesNothing(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	nodes := options().Nodes()
	before := map[string]string{}
	for _, n := range nodes {
		// Devices that are cut off at once are NotReady one after the other, some seconds apart.
		s.create(ns, strings.Replace(appYAML("app-"+n.Name, n.Name), "after: 2s", "after: 10s", 1))
	}
	for _, n := range nodes {
		before["app-"+n.Name] = string(s.waitOn(ns, "app-"+n.Name, n.Name).UID)
	}
	same := func() error {
		for name, uid := range before {
			pods := s.pods(ns, name)
			if len(pods) != 1 || string(pods[0].UID) != uid || pods[0].DeletionTimestamp != nil {
				return fmt.Errorf("%s had the pod %s, has %d: %+v", name, uid, len(pods), pods)
			}
		}
		return nil
	}
	for _, n := range nodes {
		s.Cut(n.Name)
	}
	for _, n := range nodes {
		s.WaitReady(n.Name, false)
	}
	s.lasts("the pods as they were, in the cut", 20*time.Second, same)
	for _, n := range nodes {
		s.Heal(n.Name)
	}
	for _, n := range nodes {
		s.WaitReady(n.Name, true)
	}
	s.lasts("the pods as they were, linked again", 10*time.Second, same)
}
