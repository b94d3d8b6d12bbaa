package vip_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Before a drain evicts, the address is at another node. What an operator ordered stays when the drain is over.
func TestHandOver(t *testing.T) {
	s := newSite(t, 2)
	s.give(s.vip())
	s.start()
	h := s.one()
	o := s.other(h)
	handed := func(n *node) bool {
		_, err := os.Stat(filepath.Join(n.dir, "handed"))
		return err == nil
	}
	fmt.Fprintln(o.stdin, "handover")
	eventually(t, "a node that holds nothing is done", func() bool { return handed(o) })
	fmt.Fprintln(o.stdin, "takepart")
	eventually(t, "it is a backup again", func() bool { return o.report(theVIP).State == v1alpha1.VIPBackup })

	fmt.Fprintln(h.stdin, "handover")
	eventually(t, "the holder is done", func() bool { return handed(h) })
	if h.has(theVIP) || !o.has(theVIP) {
		t.Errorf("when the hand-over had ended: the old holder has the address: %t, the other one: %t", h.has(theVIP), o.has(theVIP))
	}
	fmt.Fprintln(h.stdin, "on")
	fmt.Fprintln(h.stdin, "takepart")
	h.stop()
	if err := os.Remove(filepath.Join(h.dir, "report-"+theVIP)); err != nil {
		t.Fatal(err)
	}
	h.start()
	eventually(t, "maintenance holds on", func() bool { return h.report(theVIP).Message == "the node is under maintenance" })
	fmt.Fprintln(h.stdin, "off")
	eventually(t, "it is a backup", func() bool { return h.report(theVIP).State == v1alpha1.VIPBackup })
}
