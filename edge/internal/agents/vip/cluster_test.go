package vip_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/vip"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/kernel/host/logind"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/iptables"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/ipvs"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/keepalived"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lantest"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// The test's own binary is also the node's agent: a process in a network namespace, so that
// it can be killed.
const nodeEnv = "VIP_TEST_NODE"

// planeEnv chooses the data plane: tests/uml runs the scenarios with ipvs in a kernel that has it.
const planeEnv = "VIP_TEST_PLANE"

func TestMain(m *testing.M) {
	if raw := os.Getenv(nodeEnv); raw != "" {
		if err := serve(raw); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// settings configure an agent's process.
type settings struct {
	Name, Dir, Socket, BootID string
	Plane                     string // ipvs; else iptables
	Guards                    []netip.Prefix
	Cloud                     string         // address dialled to check whether the cloud is reachable; "" for no link
	Link                      linkstate.Link // the one to it
	Bus                       string         // address of systemd-logind's bus; "" without a bus
	Times                     vip.Times
}

// files are the agent's memory and its reports, in the place of edgecore's store and metamanager.
type files struct{ dir string }

func (f files) Load() (map[string][]byte, error) {
	all := map[string][]byte{}
	b, err := os.ReadFile(filepath.Join(f.dir, "memory"))
	if errors.Is(err, os.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	return all, json.Unmarshal(b, &all)
}

func (f files) Save(_ context.Context, changes map[string][]byte) error {
	all, err := f.Load()
	if err != nil {
		return err
	}
	maps.Copy(all, changes)
	b, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(f.dir, "memory"), b, 0o600)
}

func (f files) Report(_ context.Context, ref object.Ref, _ types.UID, body []byte) error {
	path := filepath.Join(f.dir, "report-"+ref.Name)
	if err := os.WriteFile(path+".new", body, 0o600); err != nil {
		return err
	}
	all, err := os.OpenFile(filepath.Join(f.dir, "reports-"+ref.Name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := all.Write(append(slices.Clip(body), '\n')); err != nil {
		return err
	}
	if err := all.Close(); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// serve runs the agent until its standard input ends; a line "on" or "off" there is for
// maintenance, "handover" and "takepart" for a drain.
func serve(raw string) error {
	var s settings
	if err := json.Unmarshal([]byte(raw), &s); err != nil {
		return err
	}
	var plane vip.Plane
	var err error
	if s.Plane == "ipvs" {
		plane, err = ipvs.New()
	} else {
		plane, err = iptables.New()
	}
	if err != nil {
		return err
	}
	var guards []vip.Guard
	for _, p := range s.Guards {
		guards = append(guards, vip.Guard{Prefix: p, Why: "an address of cloudcore"})
	}
	var ask func(context.Context) error
	if s.Cloud != "" {
		ask = func(ctx context.Context) error {
			c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", s.Cloud)
			if err != nil {
				return err
			}
			return c.Close()
		}
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.Socket)
	}
	agent := vip.New(vip.Config{
		NodeName: s.Name, API: &rest.Config{Host: "http://edge.invalid", Dial: dial, QPS: -1}, Plane: plane,
		Elector:  keepalived.New(keepalived.Config{Dir: filepath.Join(s.Dir, "run")}),
		Reporter: files{s.Dir}, Memory: files{s.Dir}, BootID: s.BootID,
		BootTime: func() time.Time { return time.Now().Add(-time.Hour) },
		Guards:   func() []vip.Guard { return guards }, Ask: ask, Times: s.Times,
	})
	entries := []beehive.Entry{{Module: agent, Groups: []message.Group{linkstate.Agents}}}
	if s.Cloud != "" {
		entries = append(entries, beehive.Entry{Module: linked{s.Link}})
	}
	runner, err := beehive.NewRunner(beehive.Config{}, entries)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer stop()
		var word string
		for {
			if _, err := fmt.Scanln(&word); err != nil {
				return
			}
			if err := obey(ctx, agent, s.Dir, word); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}()
	if s.Bus != "" {
		go func() {
			err := logind.Run(ctx, logind.Config{Bus: s.Bus, Retry: 100 * time.Millisecond, Why: "hands virtual IPs over", Prepare: agent.Leave, Resume: agent.Stay})
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
	}
	return runner.Run(ctx)
}

// linked is edgehub with a session.
type linked struct{ link linkstate.Link }

func (linked) Name() message.Name    { return "edgehub" }
func (linked) Topics() []message.Key { return nil }

func (l linked) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	if err := port.SendToGroup(ctx, linkstate.Agents, linkstate.Current.New(message.Resource{}, linkstate.State{Up: true, Link: l.link})); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// obey executes a command. The file "handed" appears when a hand-over has ended.
func obey(ctx context.Context, agent *vip.Agent, dir, word string) error {
	switch word {
	case "handover":
		if err := agent.HandOver(ctx); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "handed"), nil, 0o600)
	case "takepart":
		return agent.TakePart(ctx)
	}
	return agent.SetMaintenance(ctx, word == "on")
}

// api is a Kubernetes API with lists and watches of two resources, as the edge API has
// them for the agent.
type api struct {
	mu      sync.Mutex
	version int
	objects map[string]map[string]metav1.Object // resource, namespace/name
	watches map[chan watchEvent]string
}

type watchEvent struct {
	Type   string `json:"type"`
	Object any    `json:"object"`
}

func newAPI(t testing.TB) (*api, string) {
	a := &api{version: 1, objects: map[string]map[string]metav1.Object{"pods": {}, "virtualips": {}}, watches: map[chan watchEvent]string{}}
	// A socket's path is short: t.TempDir may not be.
	dir, err := os.MkdirTemp("", "vip")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: a}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() {
		server.Close()
		os.RemoveAll(dir)
	})
	return a, socket
}

func (a *api) put(o metav1.Object) {
	resource := "pods"
	if _, ok := o.(*v1alpha1.VirtualIP); ok {
		resource = "virtualips"
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	key := o.GetNamespace() + "/" + o.GetName()
	kind := "ADDED"
	if a.objects[resource][key] != nil {
		kind = "MODIFIED"
	}
	a.version++
	o.SetResourceVersion(strconv.Itoa(a.version))
	a.objects[resource][key] = o
	a.tell(resource, watchEvent{kind, typed(o)})
}

func (a *api) remove(o metav1.Object) {
	resource := "pods"
	if _, ok := o.(*v1alpha1.VirtualIP); ok {
		resource = "virtualips"
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.objects[resource], o.GetNamespace()+"/"+o.GetName())
	a.version++
	o.SetResourceVersion(strconv.Itoa(a.version))
	a.tell(resource, watchEvent{"DELETED", typed(o)})
}

// typed is a copy with its kind, as it travels.
func typed(o metav1.Object) any {
	switch o := o.(type) {
	case *corev1.Pod:
		c := o.DeepCopy()
		c.APIVersion, c.Kind = "v1", "Pod"
		return c
	case *v1alpha1.VirtualIP:
		c := o.DeepCopy()
		c.APIVersion, c.Kind = "skerry.io/v1alpha1", "VirtualIP"
		return c
	}
	return o
}

func (a *api) tell(resource string, e watchEvent) {
	for c, r := range a.watches {
		if r == resource {
			c <- e
		}
	}
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	q := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	if q.Get("sendInitialEvents") != "" { // an older server: reflectors list then
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Reason: metav1.StatusReasonInvalid, Code: 422})
		return
	}
	a.mu.Lock()
	if q.Get("watch") == "" {
		defer a.mu.Unlock()
		kind, version := "PodList", "v1"
		if resource == "virtualips" {
			kind, version = "VirtualIPList", "skerry.io/v1alpha1"
		}
		items := []any{}
		for _, o := range a.objects[resource] {
			items = append(items, typed(o))
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{"resourceVersion": strconv.Itoa(a.version)}, "items": items})
		return
	}
	from, _ := strconv.Atoi(q.Get("resourceVersion"))
	events := make(chan watchEvent, 1000)
	a.watches[events] = resource
	for _, o := range a.objects[resource] {
		if v, _ := strconv.Atoi(o.GetResourceVersion()); v > from {
			events <- watchEvent{"MODIFIED", typed(o)}
		}
	}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.watches, events)
		a.mu.Unlock()
	}()
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			if json.NewEncoder(w).Encode(e) != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
}

// node is a node with its agent, and with an API of its own: there is no cloud.
type node struct {
	t      testing.TB
	name   string
	host   *lantest.Host
	dir    string
	socket string
	api    *api
	boot   int
	octet  int
	pods   int
	guards []netip.Prefix
	cloud  string
	link   linkstate.Link
	bus    string
	times  vip.Times

	cmd   *exec.Cmd
	stdin io.WriteCloser
}

type system struct {
	t      testing.TB
	lan    *lantest.LAN
	client *lantest.Host
	nodes  []*node
}

const (
	theVIP   = "10.79.0.100"
	patience = 3 * time.Second
)

// newSystem makes nodes a, b, ... that each have a ready pod, and a client.
func newSystem(t testing.TB, nodes int) *system {
	t.Helper()
	if testing.Short() {
		t.Skip("takes its time")
	}
	if _, err := exec.LookPath("keepalived"); err != nil {
		t.Skip("needs keepalived")
	}
	s := &system{t: t, lan: lantest.New(t)}
	s.client = s.lan.Host("10.79.0.200/24")
	for i := range nodes {
		n := &node{t: t, name: string(rune('a' + i)), dir: t.TempDir(), octet: i + 1, times: vip.Times{Listen: time.Second}}
		n.host = s.lan.Host(fmt.Sprintf("10.79.0.%d/24", i+1))
		n.api, n.socket = newAPI(t)
		n.api.put(n.newPod())
		s.nodes = append(s.nodes, n)
		t.Cleanup(func() {
			n.stop()
			n.killKeepalived()
		})
	}
	return s
}

// newPod makes a namespace with a server, and the Pod object of it.
func (n *node) newPod() *corev1.Pod {
	n.pods++
	address := fmt.Sprintf("10.244.%d.%d", n.octet, n.pods+1)
	word := fmt.Sprintf("%s%d", n.name, n.pods)
	n.host.Pod(mustAddr(address)).Serve(8080, word)
	return pod(word, n.name, address)
}

func (n *node) start() {
	n.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	raw, err := json.Marshal(settings{
		Name: n.name, Dir: n.dir, Socket: n.socket, BootID: strconv.Itoa(n.boot), Plane: os.Getenv(planeEnv), Guards: n.guards, Cloud: n.cloud, Link: n.link, Bus: n.bus, Times: n.times,
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.cmd = n.host.Command(context.Background(), exe)
	n.cmd.Env = append(os.Environ(), nodeEnv+"="+string(raw))
	if testing.Verbose() {
		n.cmd.Stdout, n.cmd.Stderr = os.Stderr, os.Stderr
	}
	if n.stdin, err = n.cmd.StdinPipe(); err != nil {
		n.t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) stop() {
	if n.cmd == nil {
		return
	}
	n.stdin.Close()
	_ = n.cmd.Wait()
	n.cmd = nil
}

func (n *node) kill() {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
	n.cmd = nil
}

func (n *node) killKeepalived() { n.signalKeepalived(syscall.SIGKILL) }

func (n *node) signalKeepalived(s syscall.Signal) {
	for _, f := range []string{"keepalived.pid", "vrrp.pid"} {
		raw, err := os.ReadFile(filepath.Join(n.dir, "run", f))
		if err != nil {
			continue
		}
		if pid, err := strconv.Atoi(strings.TrimSpace(string(raw))); err == nil {
			_ = syscall.Kill(pid, s)
		}
	}
}

func (n *node) has(address string) bool { return n.host.Has(address) }

// report returns the node's last report on an address.
func (n *node) report(address string) v1alpha1.VirtualIPNodeStatus {
	var e v1alpha1.VirtualIPNodeStatus
	if raw, err := os.ReadFile(filepath.Join(n.dir, "report-"+address)); err == nil {
		_ = json.Unmarshal(raw, &e)
	}
	return e
}

// reported is how often the node has reported that it is in a state for an address: one that lasts
// for a moment is seen, too.
func (n *node) reported(address string, state v1alpha1.VirtualIPState) (times int) {
	raw, _ := os.ReadFile(filepath.Join(n.dir, "reports-"+address))
	for line := range bytes.Lines(raw) {
		var e v1alpha1.VirtualIPNodeStatus
		if json.Unmarshal(line, &e) == nil && e.State == state {
			times++
		}
	}
	return times
}

// give gives all nodes a VirtualIP, as the cloud would have.
func (s *system) give(v *v1alpha1.VirtualIP) {
	for _, n := range s.nodes {
		n.api.put(v.DeepCopy())
	}
}

func (s *system) start() {
	for _, n := range s.nodes {
		n.start()
	}
}

func (s *system) vip() *v1alpha1.VirtualIP {
	var names []string
	for _, n := range s.nodes {
		names = append(names, n.name)
	}
	v := virtualIP(theVIP, names...)
	v.Spec.Elected = true // no first election, in which the highest priority may take it from the first holder
	return v
}

// holders are the nodes that have the address.
func (s *system) holders() []*node {
	var out []*node
	for _, n := range s.nodes {
		if n.has(theVIP) {
			out = append(out, n)
		}
	}
	return out
}

// one waits until exactly one node has the address, reports it, and serves the client.
func (s *system) one() *node {
	s.t.Helper()
	var holder *node
	poll.True(s.t, "one node holds the address and serves it", func() bool {
		h := s.holders()
		if len(h) != 1 || h[0].report(theVIP).State != v1alpha1.VIPHolder {
			return false
		}
		holder = h[0]
		word, _, err := s.client.Ask("tcp", theVIP+":80", patience)
		return err == nil && strings.HasPrefix(word, holder.name)
	})
	return holder
}

// settled waits until one node holds the address and serves it while all others report to be
// backups: where several nodes are about to change, one (above) may be true for a moment.
func (s *system) settled() *node {
	s.t.Helper()
	var holder *node
	poll.True(s.t, "one node holds the address, and all others are backups", func() bool {
		holder = nil
		for _, n := range s.nodes {
			switch state := n.report(theVIP).State; {
			case n.has(theVIP) && state == v1alpha1.VIPHolder && holder == nil:
				holder = n
			case n.has(theVIP) || state != v1alpha1.VIPBackup:
				return false
			}
		}
		if holder == nil {
			return false
		}
		word, _, err := s.client.Ask("tcp", theVIP+":80", patience)
		return err == nil && strings.HasPrefix(word, holder.name) && holder.has(theVIP)
	})
	return holder
}

// other is a node that is not n.
func (s *system) other(n *node) *node {
	i := slices.IndexFunc(s.nodes, func(x *node) bool { return x != n })
	return s.nodes[i]
}

// inGuest reports whether the test runs in user-mode Linux, which has one processor, and pays for
// each page fault and each switch between processes: polling takes the processor from the awaited
// event.
func inGuest() bool { return os.Getenv(planeEnv) != "" }

// sideBySide lets a test run in parallel with others there: most of it is waiting. One about a
// first election, which has a deadline (firstElection), needs the processor for itself.
func sideBySide(t *testing.T) {
	if inGuest() {
		t.Parallel()
	}
}
