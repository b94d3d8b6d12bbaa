package site

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

func device(name, pool string, ranges ...string) *Device {
	d := &Device{Name: name, Labels: labels.Set{v1alpha1.EdgeOwnLabel: ""}, Addresses: []string{"192.0.2.1"}}
	if pool != "" {
		d.Labels[v1alpha1.NodePoolLabel] = pool
	}
	for _, r := range ranges {
		d.PodCIDRs = append(d.PodCIDRs, netip.MustParsePrefix(r))
	}
	return d
}

func pool(name, network string, subnets ...string) *v1alpha1.NodePool {
	return &v1alpha1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodePoolSpec{Type: v1alpha1.NodePoolEdge, Network: network, PodSubnets: subnets}}
}

func members(x *Index, node string) (names []string) {
	for _, m := range x.Site(node, Revocations{}).GetMembers() {
		names = append(names, m.GetNode())
	}
	return names
}

func TestIndex_Site(t *testing.T) {
	older := pool("older", "")
	older.CreationTimestamp = metav1.Unix(1, 0)
	older.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"hall": "1"}}
	younger := pool("younger", "")
	younger.CreationTimestamp = metav1.Unix(2, 0)
	cloud := pool("cloud", "")
	cloud.Spec.Type = v1alpha1.NodePoolCloud
	both := device("b", "younger")
	both.Labels["hall"] = "1"
	plain := device("plain", "younger")
	plain.Labels = nil
	one := device("a", "younger")
	two := device("c", "younger")
	alone, server := device("alone", ""), device("server", "cloud")
	x := NewIndex([]*Device{two, one, both, plain, alone, server}, []*v1alpha1.NodePool{younger, older, cloud})
	for node, want := range map[string][]string{
		"a": {"a", "c"}, "c": {"a", "c"}, "b": {"b"}, "alone": {"alone"}, "server": {"server"}, "unknown": {"unknown"},
	} {
		if diff := cmp.Diff(want, members(x, node)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", node, diff)
		}
	}
	if got := x.Site("a", Revocations{}).GetName(); got != "younger" {
		t.Errorf("a is in %q", got)
	}
	// A revocation changes the site sent to the others, and its digest.
	before := x.Site("a", Revocations{})
	after := x.Site("a", Revocations{Nodes: map[types.NodeName]Ban{"c": {Since: time.Unix(1e9, 0), Keys: []string{"k"}}}, Fingerprints: []string{"f"}})
	if m := after.GetMembers()[1]; m.GetValidFrom() != 1e9 || m.GetKeys()[0] != "k" || after.GetRevoked()[0] != "f" || slices.Equal(before.GetDigest(), after.GetDigest()) {
		t.Errorf("%v", after)
	}
}

// Whose range counts depends on whose Node is older: one that registers again while no watch is
// open is a change, though it brings all that it had.
func TestSameDevice_registeredAgain(t *testing.T) {
	one, again := device("a", "p", "10.0.0.0/24"), device("a", "p", "10.0.0.0/24")
	one.Created, again.Created = time.Unix(1, 0), time.Unix(1, 0)
	if !sameDevice(one, again) {
		t.Error("the same Node counts as a change")
	}
	if again.Created = time.Unix(2, 0); sameDevice(one, again) {
		t.Error("a younger Node counts as no change")
	}
}

// Of more devices than a site may have, each is sent a site of its own, and why.
func TestIndex_tooManyDevices(t *testing.T) {
	var all []*Device
	for n := range MaxDevices + 1 {
		all = append(all, device(fmt.Sprintf("edge%03d", n), "p"))
	}
	x := NewIndex(all[:MaxDevices], []*v1alpha1.NodePool{pool("p", "")})
	if s := x.Site("edge000", Revocations{}); s.GetTooMany() || len(s.GetMembers()) != MaxDevices {
		t.Errorf("%d devices: %v", MaxDevices, s.GetTooMany())
	}
	x = NewIndex(all, []*v1alpha1.NodePool{pool("p", "")})
	if s := x.Site("edge000", Revocations{}); !s.GetTooMany() || len(s.GetMembers()) != 1 || s.GetMembers()[0].GetNode() != "edge000" {
		t.Errorf("%d devices: %v", MaxDevices+1, s)
	}
}

func TestAllocate(t *testing.T) {
	pending := device("pending", "a")
	pending.Offer = "10.0.1.0/24"
	foreign := device("foreign", "", "10.0.2.0/23") // a server of the cluster
	foreign.Labels = nil
	devices := []*Device{
		device("has", "a", "10.0.0.0/24"), pending, device("new1", "a"), device("new2", "a"), device("elsewhere", "b"), device("poolless", ""), foreign,
	}
	pools := []*v1alpha1.NodePool{pool("a", "hall", "10.0.0.0/21", "2001:db8:1::/48"), pool("b", "yard", "10.0.0.0/21")}
	got := Allocate(NewIndex(devices, pools), devices, pools, nil)
	var offers []string
	for _, o := range got.Offers {
		offers = append(offers, o.Node+" "+o.String())
	}
	want := []string{
		"new1 10.0.4.0/24,2001:db8:1::/64", "new2 10.0.5.0/24,2001:db8:1:1::/64",
		"elsewhere 10.0.0.0/24", // of another network: the two never meet
	}
	if diff := cmp.Diff(want, offers); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	// No range is offered twice, and a site that is full reports it.
	var many []*Device
	for n := range 5 {
		many = append(many, device(fmt.Sprint("d", n), "a"))
	}
	small := []*v1alpha1.NodePool{pool("a", "", "10.0.0.0/22")}
	full := Allocate(NewIndex(many, small), many, small, nil)
	if len(full.Offers) != 4 || full.Full["a"] != 1 {
		t.Errorf("%v, left without: %v", full.Offers, full.Full)
	}
}

// podSubnets that overlap a taken prefix are refused by their place, and no range of them is
// offered.
func TestAllocate_refuses(t *testing.T) {
	d := device("d", "a")
	d.LANs = []netip.Prefix{netip.MustParsePrefix("192.168.1.0/24")}
	d.Addresses = []string{"172.16.3.9"}
	pools := []*v1alpha1.NodePool{pool("a", "", "10.96.0.0/16", "192.168.0.0/16", "172.16.0.0/16", "10.1.0.0/16")}
	got := Allocate(NewIndex([]*Device{d}, pools), []*Device{d}, pools, []Taken{{netip.MustParsePrefix("10.96.0.0/12"), "a range of Services"}})
	for i, want := range []string{
		"podSubnets[0]: 10.96.0.0/16 overlaps 10.96.0.0/12, a range of Services", "node d is on 192.168.1.0/24: it is offered no range of 192.168.0.0/16",
		"node d has the address 172.16.3.9: it is offered no range of 172.16.0.0/16",
	} {
		if i >= len(got.Invalid["a"]) || got.Invalid["a"][i] != want {
			t.Errorf("%s, want %s", strings.Join(got.Invalid["a"], "; "), want)
		}
	}
	if len(got.Offers) != 1 || got.Offers[0].String() != "10.1.0.0/24" {
		t.Errorf("%v", got.Offers)
	}
}

// Another node's report costs a device no range: neither a range that covers everything, nor an
// offer that it wrote itself, nor its claims about its networks and addresses.
func TestClaims_03_WhatANodeSaysLimitsThatNodeOnly(t *testing.T) {
	outside := device("outside", "", "0.0.0.0/0", "::/0")
	outside.Offer, outside.LANs, outside.Addresses = "10.0.0.0/8,::/0", []netip.Prefix{netip.MustParsePrefix("10.244.7.7/16")}, []string{"10.244.0.1"}
	member := device("member", "plant", "10.244.0.0/16")
	member.Offer, member.LANs = "0.0.0.0/1", []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	member.Created = time.Unix(1, 0) // older than all others
	devices := []*Device{outside, member, device("has", "plant", "10.244.1.0/24"), device("new", "plant")}
	pools := []*v1alpha1.NodePool{pool("plant", "", "10.244.0.0/16")}
	x := NewIndex(devices, pools)
	got := Allocate(x, devices, pools, nil)
	if len(got.Offers) != 1 || got.Offers[0].Node != "new" || got.Offers[0].String() != "10.244.0.0/24" || len(got.Invalid["plant"]) > 0 {
		t.Errorf("offers %v, refused %v", got.Offers, got.Invalid)
	}
	if diff := cmp.Diff([]netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}, x.Ranges("has"), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if words := x.refused["plant"]; len(words) != 1 || !strings.HasPrefix(words[0], "node member claims 10.244.0.0/16") {
		t.Errorf("%q", words)
	}
}

// A device's range counts inside its pool's podSubnets, as long as those that are offered, and
// where no older device has it. Other ranges are never sent.
func TestClaims_01_RangeCountsInsidePodSubnets(t *testing.T) {
	older, younger := device("z-older", "plant", "10.244.1.0/24"), device("a-younger", "plant", "10.244.1.0/24")
	older.Created, younger.Created = time.Unix(1, 0), time.Unix(2, 0)
	cloud := device("evil", "plant", "198.51.100.0/24")
	server := device("server", "", "10.244.9.0/24")
	server.Labels = nil
	devices := []*Device{cloud, younger, older, server, device("overserver", "plant", "10.244.9.0/24"), device("wide", "plant", "10.240.0.0/12")}
	x := NewIndex(devices, []*v1alpha1.NodePool{pool("plant", "", "10.244.0.0/16")})
	got := map[string][]string{}
	for _, m := range x.Site("z-older", Revocations{}).GetMembers() {
		got[m.GetNode()] = m.GetPodCidrs()
	}
	want := map[string][]string{"z-older": {"10.244.1.0/24"}, "a-younger": nil, "evil": nil, "overserver": nil, "wide": nil}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if words := x.refused["plant"]; len(words) != 4 {
		t.Errorf("%q", words)
	}
}
