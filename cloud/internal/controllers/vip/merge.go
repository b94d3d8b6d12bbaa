package vip

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/controllers/reports"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Kind is VirtualIPs as the aggregation of reports needs them.
func Kind() reports.Kind {
	return reports.Of(v1alpha1.Resource(v1alpha1.VirtualIPs), merge, func(v *v1alpha1.VirtualIP, exists func(string) bool) {
		n := len(v.Status.Nodes)
		v.Status.Nodes = slices.DeleteFunc(v.Status.Nodes, func(e v1alpha1.VirtualIPNodeStatus) bool { return !exists(e.Name) })
		if len(v.Status.Nodes) != n {
			Merge(v, nil, time.Now())
		}
	})
}

// merge puts the nodes' reports into a status.
func merge(v *v1alpha1.VirtualIP, reports map[string][]byte) (refused map[string]error) {
	refused = map[string]error{}
	var entries []v1alpha1.VirtualIPNodeStatus
	for node, body := range reports {
		if body == nil {
			v.Status.Nodes = slices.DeleteFunc(v.Status.Nodes, func(e v1alpha1.VirtualIPNodeStatus) bool { return e.Name == node })
			continue
		}
		var e v1alpha1.VirtualIPNodeStatus
		if err := json.Unmarshal(body, &e); err != nil {
			refused[node] = fmt.Errorf("the report is no entry of a VirtualIP's status: %w", err)
			continue
		}
		if !slices.Contains([]v1alpha1.VirtualIPState{v1alpha1.VIPHolder, v1alpha1.VIPBackup, v1alpha1.VIPNotReady, v1alpha1.VIPFault, v1alpha1.VIPReleased}, e.State) {
			refused[node] = fmt.Errorf("the report has state %q", e.State)
			continue
		}
		e.Name = node // whatever the report has: the session determines it
		tidy(&e, time.Now())
		entries = append(entries, e)
	}
	Merge(v, entries, time.Now())
	return refused
}

// tidy bounds a node's report of itself, and drops malformed values.
func tidy(e *v1alpha1.VirtualIPNodeStatus, now time.Time) {
	e.Message = short(e.Message)
	if e.Since.IsZero() { // as JSON it is null, which is not stored: each report of it would be a change
		e.Since = nil
	}
	if e.Since != nil && e.Since.After(now) { // a clock that is ahead does not make a node the newest holder for good
		at := metav1.NewTime(now).Rfc3339Copy()
		e.Since = &at
	}
	if _, err := netip.ParsePrefix(e.Address); err != nil {
		e.Address = ""
	}
	if _, err := netip.ParseAddr(e.ForeignRouter); err != nil {
		e.ForeignRouter = ""
	}
	if _, err := net.ParseMAC(e.HardwareAddress); err != nil {
		e.HardwareAddress = ""
	}
	if _, err := net.ParseMAC(e.DuplicateOf); err != nil {
		e.DuplicateOf = ""
	}
	if len(e.Interface) > 15 { // IFNAMSIZ
		e.Interface = ""
	}
}

// Merge puts the reported entries of nodes into the status of a VirtualIP, drops those of nodes
// that it does not concern any more, and derives the rest of the status from all of them. It
// reports whether anything changed. At a take-over two nodes report for a moment that they hold the
// address, since the one that lost it may be the later one to report; two that continue to report
// it don't receive each other's advertisements, and both are shown.
func Merge(v *v1alpha1.VirtualIP, entries []v1alpha1.VirtualIPNodeStatus, now time.Time) bool {
	before := v.Status.DeepCopy()
	s := &v.Status
	for _, e := range entries {
		if i := slices.IndexFunc(s.Nodes, func(n v1alpha1.VirtualIPNodeStatus) bool { return n.Name == e.Name }); i >= 0 {
			s.Nodes[i] = e
		} else {
			s.Nodes = append(s.Nodes, e)
		}
	}
	s.Nodes = slices.DeleteFunc(s.Nodes, func(n v1alpha1.VirtualIPNodeStatus) bool {
		return !slices.ContainsFunc(v.Spec.Nodes, func(c v1alpha1.VirtualIPNode) bool { return c.Name == n.Name })
	})
	slices.SortFunc(s.Nodes, func(a, b v1alpha1.VirtualIPNodeStatus) int { return cmp.Compare(a.Name, b.Name) })

	f := findings(s.Nodes)
	s.Holder, s.ReadyNodes = strings.Join(f.holders, ","), f.ready
	condition := func(kind string, is bool, yes, no, message string) {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: no, Message: short(message)}
		if is {
			c.Status, c.Reason = metav1.ConditionTrue, yes
		}
		setCondition(&s.Conditions, now, c)
	}
	words := func(all []string, none string) string { return cmp.Or(strings.Join(all, "; "), none) }
	notProgrammed := "NotProgrammed"
	if len(s.Nodes) == 0 {
		notProgrammed = "NoReport"
	}
	condition(v1alpha1.VIPConditionProgrammed, len(s.Nodes) > 0 && len(f.notProgrammed) == 0, "Programmed", notProgrammed,
		words(f.notProgrammed, "every node that reported has its rules"))
	condition(v1alpha1.VIPConditionAnnounced, len(f.holders) > 0, "Held", "NoHolder", f.announced())
	condition(v1alpha1.VIPConditionDuplicate, len(f.duplicates) > 0, "Answered", "NoOtherHost", words(f.duplicates, "no node found the address with another host"))
	condition(v1alpha1.VIPConditionVRID, len(f.routers) > 0, "ForeignRouter", "NoForeignRouter", words(f.routers, "no node has received another router's advertisements with the number"))
	several := "at most one node holds the address"
	if len(f.holders) > 1 {
		several = "nodes " + strings.Join(f.holders, " and ") + " hold the address: they don't receive each other's advertisements (IP protocol 112)"
	}
	condition(v1alpha1.VIPConditionHolders, len(f.holders) > 1, "NotHeard", "OneHolder", several)
	return !equalStatus(before, s)
}

// found is derived from the entries of all nodes.
type found struct {
	holders       []string // the one that holds it for the shortest time first
	backups       []string
	ready         int32
	duplicates    []string // nodes' reports of other hosts that have the address
	routers       []string // and of routers with its number
	faults        []string // why nodes refuse it
	notProgrammed []string
}

func findings(nodes []v1alpha1.VirtualIPNodeStatus) found {
	var f found
	newest := slices.Clone(nodes)
	slices.SortStableFunc(newest, func(a, b v1alpha1.VirtualIPNodeStatus) int { return since(&b).Compare(since(&a)) })
	for _, n := range newest {
		if n.State == v1alpha1.VIPHolder {
			f.holders = append(f.holders, n.Name)
		}
	}
	for _, n := range nodes {
		if n.State == v1alpha1.VIPBackup {
			f.backups = append(f.backups, n.Name)
		}
		if n.DuplicateOf != "" {
			f.duplicates = append(f.duplicates, n.Name+": "+cmp.Or(n.Message, n.DuplicateOf+" has the address"))
		}
		if n.ForeignRouter != "" {
			f.routers = append(f.routers, n.Name+": router "+n.ForeignRouter+" uses number "+strconv.Itoa(int(n.ForeignVRID))+" for other addresses")
		}
		if n.State == v1alpha1.VIPFault && n.Message != "" {
			f.faults = append(f.faults, n.Name+": "+n.Message)
		}
		if !n.Programmed {
			f.notProgrammed = append(f.notProgrammed, n.Name+": "+n.Message)
		}
	}
	f.ready = int32(len(f.holders) + len(f.backups))
	return f
}

// announced describes the holder of the address, or why no node is.
func (f found) announced() string {
	switch {
	case len(f.holders) == 1:
		return "node " + f.holders[0] + " holds the address"
	case len(f.holders) > 1:
		return "nodes " + strings.Join(f.holders, " and ") + " hold the address"
	case len(f.duplicates) > 0:
		return "no node holds the address: another host on the LAN has it"
	case len(f.backups) > 0:
		return "no node holds the address, though " + strings.Join(f.backups, " and ") + " could: an election is under way, or another router on the LAN has won it"
	}
	if len(f.faults) > 0 {
		return "no node holds the address: " + strings.Join(f.faults, "; ")
	}
	return "no node holds the address: no pod of the Service is ready on any node"
}

func since(n *v1alpha1.VirtualIPNodeStatus) time.Time {
	if n.Since == nil {
		return time.Time{}
	}
	return n.Since.Time
}

func equalStatus(a, b *v1alpha1.VirtualIPStatus) bool {
	return a.Holder == b.Holder && a.ReadyNodes == b.ReadyNodes && slices.Equal(a.Conditions, b.Conditions) &&
		slices.EqualFunc(a.Nodes, b.Nodes, func(x, y v1alpha1.VirtualIPNodeStatus) bool {
			same := x.Since.Equal(y.Since)
			x.Since, y.Since = nil, nil
			return same && x == y
		})
}
