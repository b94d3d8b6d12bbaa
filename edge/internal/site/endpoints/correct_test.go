package endpoints_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/site/endpoints"
)

// peers is the state that a contact with other devices would have.
type peers struct {
	no4      map[string]bool // devices that have no IPv4 address
	contacts map[string]endpoints.Contact
	statuses map[types.UID]endpoints.PodStatus
}

func (p peers) Contact(device string) endpoints.Contact { return p.contacts[device] }

func (p peers) PodStatus(_ string, uid types.UID) (endpoints.PodStatus, bool) {
	w, ok := p.statuses[uid]
	return w, ok
}

func (p peers) Reaches(device string, v4 bool) bool { return !v4 || !p.no4[device] }

func status(ready, terminating bool, addresses ...string) endpoints.PodStatus {
	w := endpoints.PodStatus{Ready: ready, Terminating: terminating}
	for _, a := range addresses {
		w.Addresses = append(w.Addresses, netip.MustParseAddr(a))
	}
	return w
}

// endpoint is one as the cloud last knew it: ready.
func endpoint(address, node, uid string) discoveryv1.Endpoint {
	yes := true
	e := discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}}
	if node != "" {
		e.NodeName = &node
	}
	if uid != "" {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", UID: types.UID(uid)}
	}
	return e
}

func slice(namespace, service string, all ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	https, port := "https", int32(6443)
	return &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: service + "-x", UID: "s", Labels: map[string]string{discoveryv1.LabelServiceName: service},
			Annotations: map[string]string{v1alpha1.SiteAnnotation: "harbour"},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: all, Ports: []discoveryv1.EndpointPort{{Name: &https, Port: &port}},
	}
}

func shown(t *testing.T, c *endpoints.Correction, s *discoveryv1.EndpointSlice) string {
	t.Helper()
	o, err := object.FromObject(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), s)
	if err != nil {
		t.Fatal(err)
	}
	before := s.DeepCopy()
	raw := c.Correct(o, s)
	if !apiequality.Semantic.DeepEqual(before, s) {
		t.Errorf("Correct has changed what its caller has decoded:\n%s", cmp.Diff(before, s))
	}
	if again := c.Correct(o, nil); !bytes.Equal(raw, again) {
		t.Error("Correct makes something else of what it has to decode itself")
	}
	obj, err := object.DecodeRaw(raw)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, e := range obj.(*discoveryv1.EndpointSlice).Endpoints {
		is := func(name string, v *bool) string {
			if v == nil {
				return ""
			}
			if *v {
				return " " + name
			}
			return " not-" + name
		}
		text := strings.Join(e.Addresses, ",") + is("ready", e.Conditions.Ready) + is("serving", e.Conditions.Serving) + is("terminating", e.Conditions.Terminating)
		if e.Hints != nil {
			text += fmt.Sprint(" zones:", len(e.Hints.ForZones), " nodes:", len(e.Hints.ForNodes))
		}
		lines = append(lines, text)
	}
	return strings.Join(lines, "\n")
}

func ownPod(uid, ip string, ready bool, container string) *corev1.Pod {
	p := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid)}, Spec: corev1.PodSpec{NodeName: "edge1"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{ContainerID: container}}},
	}
	if ip != "" {
		p.Status.PodIPs = []corev1.PodIP{{IP: ip}}
	}
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.ContainersReady, Status: status}}
	return p
}

// Each case is one endpoint as the cloud last sent it, and its correction.
func TestCorrect(t *testing.T) {
	zone := "harbour"
	inZone := func(e discoveryv1.Endpoint) discoveryv1.Endpoint { e.Zone = &zone; return e }
	known := peers{
		contacts: map[string]endpoints.Contact{"met": endpoints.Met, "mute": endpoints.Mute, "dead": endpoints.Dead, "no4": endpoints.Met},
		no4:      map[string]bool{"no4": true},
		statuses: map[types.UID]endpoints.PodStatus{
			"p": status(true, false, "10.9.0.7"), "unready": status(false, false, "10.9.0.7"), "leaving": status(true, true, "10.9.0.7"),
			"six": status(true, false, "fd00::7"), "none": status(false, false),
		},
	}
	local := endpoints.PodStatusOf
	own := map[types.UID]endpoints.PodStatus{
		"own": local(ownPod("own", "10.8.0.9", true, "new"), nil), "own-unready": local(ownPod("own-unready", "10.8.0.9", false, "new"), nil),
		"own-preboot": local(ownPod("own-preboot", "10.8.0.3", true, "old"), map[string]bool{"old": true}),
	}
	for name, c := range map[string]struct {
		service, want string
		e             discoveryv1.Endpoint
	}{
		"never met: the cloud's status":         {"s", "10.0.0.1 ready", endpoint("10.0.0.1", "stranger", "p")},
		"met: its device's status":              {"s", "10.9.0.7 ready serving not-terminating", endpoint("10.0.0.1", "met", "p")},
		"met: unready":                          {"s", "10.9.0.7 not-ready not-serving not-terminating", endpoint("10.0.0.1", "met", "unready")},
		"met: leaving":                          {"s", "10.9.0.7 not-ready serving terminating", endpoint("10.0.0.1", "met", "leaving")},
		"met: no address of the family":         {"s", "", endpoint("10.0.0.1", "met", "six")},
		"met: no address yet":                   {"s", "", endpoint("10.0.0.1", "met", "none")},
		"met: the pod is unknown to its device": {"s", "10.0.0.1 not-ready not-serving terminating", endpoint("10.0.0.1", "met", "gone")},
		"mute: the status holds":                {"s", "10.9.0.7 ready serving not-terminating", endpoint("10.0.0.1", "mute", "p")},
		"no way by this family":                 {"s", "10.0.0.1 not-ready not-serving not-terminating", endpoint("10.0.0.1", "no4", "p")},
		"dead":                                  {"s", "10.0.0.1 not-ready not-serving not-terminating", endpoint("10.0.0.1", "dead", "p")},
		"all published: unready counts":         {"all", "10.9.0.7 ready", endpoint("10.0.0.1", "met", "unready")},
		"all published: but not dead":           {"all", "10.0.0.1 not-ready not-serving not-terminating", endpoint("10.0.0.1", "dead", "p")},
		"no pod: its device counts":             {"s", "10.0.0.1 not-ready not-serving not-terminating", endpoint("10.0.0.1", "dead", "")},
		"no pod: its device lives":              {"s", "10.0.0.1 ready", endpoint("10.0.0.1", "met", "")},
		"neither":                               {"s", "10.0.0.1 ready", endpoint("10.0.0.1", "", "")},
		"own: the address of this boot":         {"s", "10.8.0.9 ready serving not-terminating", endpoint("10.8.0.3", "edge1", "own")},
		"own: unready":                          {"s", "10.8.0.9 not-ready not-serving not-terminating", endpoint("10.8.0.3", "edge1", "own-unready")},
		"own: not started in this boot":         {"s", "", endpoint("10.8.0.3", "edge1", "own-preboot")},
		"own: gone":                             {"s", "10.8.0.3 not-ready not-serving terminating", endpoint("10.8.0.3", "edge1", "deleted")},
		"hints: same zone":                      {"zone", "10.9.0.7 ready serving not-terminating zones:1 nodes:0", inZone(endpoint("10.0.0.1", "met", "p"))},
		"hints: same node":                      {"node", "10.9.0.7 ready serving not-terminating zones:1 nodes:1", inZone(endpoint("10.0.0.1", "met", "p"))},
		"hints: none for one that is out":       {"node", "10.9.0.7 not-ready not-serving not-terminating", inZone(endpoint("10.0.0.1", "met", "unready"))},
	} {
		t.Run(name, func(t *testing.T) {
			correction := endpoints.NewCorrection(endpoints.CorrectionConfig{NodeName: "edge1", Peers: known})
			correction.Learn(own, map[types.NamespacedName]endpoints.Service{
				{Namespace: "default", Name: "all"}:  {PublishNotReady: true},
				{Namespace: "default", Name: "zone"}: {Distribution: corev1.ServiceTrafficDistributionPreferSameZone},
				{Namespace: "default", Name: "node"}: {Distribution: corev1.ServiceTrafficDistributionPreferSameNode},
			})
			if diff := cmp.Diff(c.want, shown(t, correction, slice("default", c.service, c.e))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got := correction.Site(); got != "harbour" {
				t.Errorf("the site is %q", got)
			}
		})
	}
}

// The device is the endpoint of the cluster's API and DNS, and of no other Service.
func TestCorrect_ThisDeviceStandsForTheClusters(t *testing.T) {
	c := endpoints.NewCorrection(endpoints.CorrectionConfig{
		NodeName: "edge1", API: netip.MustParseAddrPort("169.254.20.20:10550"), DNS: netip.MustParseAddrPort("169.254.20.20:53"),
	})
	cloud := []discoveryv1.Endpoint{endpoint("203.0.113.1", "", ""), endpoint("203.0.113.2", "", "")}
	for name, want := range map[string]string{
		"default/kubernetes": "169.254.20.20 ready serving not-terminating", "kube-system/kube-dns": "169.254.20.20 ready serving not-terminating",
		"default/kube-dns": "203.0.113.1 ready\n203.0.113.2 ready", "kube-system/kubernetes": "203.0.113.1 ready\n203.0.113.2 ready",
	} {
		namespace, service, _ := strings.Cut(name, "/")
		if diff := cmp.Diff(want, shown(t, c, slice(namespace, service, cloud...))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	six := slice("default", "kubernetes", endpoint("2001:db8::1", "", ""))
	six.AddressType = discoveryv1.AddressTypeIPv6
	if got := shown(t, c, six); got != "" {
		t.Errorf("IPv6: %s; the device serves pods at an IPv4 address alone", got)
	}
}

// Only the slices that a change is about are shown again.
func TestCorrection_WhatAChangeConcerns(t *testing.T) {
	c := endpoints.NewCorrection(endpoints.CorrectionConfig{NodeName: "edge1", Peers: peers{}})
	_ = shown(t, c, slice("default", "own", endpoint("10.8.0.3", "edge1", "a")))
	_ = shown(t, c, slice("default", "peer", endpoint("10.9.0.3", "edge2", "b")))
	_ = shown(t, c, slice("default", "all", endpoint("10.9.0.4", "edge3", "c")))
	names := func(refs []object.Ref) (out []string) {
		for _, r := range refs {
			out = append(out, r.Name)
		}
		return out
	}
	own := map[types.UID]endpoints.PodStatus{"a": status(true, false, "10.8.0.9")}
	if diff := cmp.Diff([]string{"own-x"}, names(c.Learn(own, nil))); diff != "" {
		t.Errorf("a pod of this device (-want +got):\n%s", diff)
	}
	own = map[types.UID]endpoints.PodStatus{"a": status(true, false, "10.8.0.9")}
	if got := c.Learn(own, nil); len(got) > 0 {
		t.Errorf("nothing has changed, and %v are shown again", got)
	}
	c.PeerChanged("edge2")
	c.PeerChanged("of-no-slice")
	if diff := cmp.Diff([]string{"peer-x"}, names(c.Learn(own, nil))); diff != "" {
		t.Errorf("a peer (-want +got):\n%s", diff)
	}
	all := map[types.NamespacedName]endpoints.Service{{Namespace: "default", Name: "all"}: {PublishNotReady: true}}
	if diff := cmp.Diff([]string{"all-x"}, names(c.Learn(own, all))); diff != "" {
		t.Errorf("a Service (-want +got):\n%s", diff)
	}
}

// A boot is known by its ID: the store's status of pods when another one is seen first is of the
// boot before. On a device that runs this for the first time pods are as in the store.
func TestPreBoot(t *testing.T) {
	memory := &inMemory{}
	pods := []*corev1.Pod{ownPod("a", "10.8.0.3", true, "c1")}
	sync := func(bootID string) string {
		t.Helper()
		c := endpoints.NewCorrection(endpoints.CorrectionConfig{NodeName: "edge1"})
		if err := endpoints.SyncOnce(t.Context(), endpoints.Config{NodeName: "edge1", Correction: c, View: ignored{}, Memory: memory, BootID: bootID}, pods, time.Now()); err != nil {
			t.Fatal(err)
		}
		return shown(t, c, slice("default", "s", endpoint("10.8.0.3", "edge1", "a")))
	}
	const ready = "10.8.0.3 ready serving not-terminating"
	for _, step := range []struct{ boot, container, want string }{
		{"one", "c1", ready}, {"one", "c1", ready}, {"two", "c1", ""}, {"two", "c1", ""}, {"two", "c2", ready}, {"three", "c2", ""}, {"three", "c3", ready},
	} {
		pods[0].Status.ContainerStatuses[0].ContainerID = step.container
		if got := sync(step.boot); got != step.want {
			t.Errorf("boot %s, container %s: %q, want %q", step.boot, step.container, got, step.want)
		}
	}
}

// After a boot with a full disk Services are restored nevertheless: a pod that began before the
// boot is out, also in a later run of this boot, and one that began in it is not. That is stored as
// soon as there is space.
func TestPreBoot_fullDisk(t *testing.T) {
	booted := time.Now()
	memory := &inMemory{}
	pods := []*corev1.Pod{ownPod("a", "10.8.0.3", true, "of-before"), ownPod("b", "10.8.0.4", true, "of-now")}
	for i, began := range []time.Time{booted.Add(-time.Hour), booted.Add(time.Minute)} {
		pods[i].Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(began)}
	}
	var c *endpoints.Correction
	run := func(bootID string) func() {
		c = endpoints.NewCorrection(endpoints.CorrectionConfig{NodeName: "edge1"})
		sync := endpoints.Syncs(endpoints.Config{
			NodeName: "edge1", Correction: c, View: ignored{}, Memory: memory, BootID: bootID, BootTime: func() time.Time { return booted },
		})
		return func() {
			t.Helper()
			if err := sync(t.Context(), pods, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
	}
	expect := func(when string, want ...string) {
		t.Helper()
		for i, name := range []string{"a", "b"} {
			address := fmt.Sprintf("10.8.0.%d", 3+i)
			if got := shown(t, c, slice("default", "s", endpoint(address, "edge1", name))); got != want[i] {
				t.Errorf("%s: pod %s is shown as %q, want %q", when, name, got, want[i])
			}
		}
	}
	now := "10.8.0.4 ready serving not-terminating"
	run("one")()
	memory.full = true
	run("two")()
	expect("the first run of the boot", "", now)
	sync := run("two")
	sync()
	expect("the second run of the boot", "", now)
	memory.full = false
	sync()
	memory.full = true
	pods[1].Status.ContainerStatuses[0].State.Running.StartedAt = metav1.NewTime(booted.Add(-time.Hour)) // the clock was set in the meantime
	run("two")()
	expect("a run after there was room", "", now)
}

// A device that lost its IPv4 address while IPv6 stays is met, and its IPv4 pods are in no
// rotation.
func TestClaims_27_EndpointsOfAFamilyWithoutAWayAreNotReady(t *testing.T) {
	known := peers{contacts: map[string]endpoints.Contact{"b": endpoints.Met}, statuses: map[types.UID]endpoints.PodStatus{"p": status(true, false, "10.0.0.1", "fd00::1")}, no4: map[string]bool{"b": true}}
	for address, want := range map[string]string{
		"10.0.0.1": "10.0.0.1 not-ready not-serving not-terminating", "fd00::1": "fd00::1 ready serving not-terminating",
	} {
		s := slice("default", "s", endpoint(address, "b", "p"))
		if netip.MustParseAddr(address).Is6() {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		if got := shown(t, endpoints.NewCorrection(endpoints.CorrectionConfig{NodeName: "edge1", Peers: known}), s); got != want {
			t.Errorf("want %q, got %q", want, got)
		}
	}
}
