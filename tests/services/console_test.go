package services_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// output is a command's output so far.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// console runs `edgecore console` on a node until it ends, and returns its output and its exit
// code.
func (s *system) console(ctx context.Context, node, args string, out *output) (int, error) {
	line := strings.Fields(args)
	return s.Trial.Exec(ctx, node, trial.Streams{Out: out, Err: out}, nil, s.Root+"/bin/edgecore", append([]string{"console"}, line...)...)
}

// refused waits until a console is refused with a text and an exit code.
func (s *system) refused(node, args, text string, code int) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("edgecore console %s to say %q", args, text), func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		var out output
		got, err := s.console(ctx, node, args, &out)
		if err == nil && (got != code || !strings.Contains(out.String(), text)) {
			err = fmt.Errorf("code %d: %s", got, &out)
		}
		return err
	})
}

// opened is a console that is open.
type opened struct {
	s       *system
	address string
	out     *output
	ended   chan error // with its exit code
}

// open opens a console on edge1.
func (s *system) open(args string) *opened {
	s.T.Helper()
	o := &opened{s: s, out: &output{}, ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	s.T.Cleanup(cancel)
	go func() {
		code, err := s.console(ctx, "edge1", args, o.out)
		if err == nil && code != 0 {
			err = fmt.Errorf("code %d", code)
		}
		o.ended <- err
	}()
	s.WaitFor("the console to open", func(context.Context) error {
		_, rest, ok := strings.Cut(o.out.String(), " is at ")
		if !ok {
			return errors.New(o.out.String())
		}
		o.address, _, _ = strings.Cut(rest, " ")
		return nil
	})
	if !strings.HasPrefix(o.address, "127.0.0.1:590") {
		s.T.Errorf("it listens at %s", o.address)
	}
	return o
}

// dial connects to the console from its device.
func (o *opened) dial() (net.Conn, error) {
	h, err := o.s.Trial.Host("edge1")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(o.s.T.Context(), 10*time.Second)
	defer cancel()
	return h.Dial(ctx, "tcp", o.address)
}

// view is a VNC client of it.
func (o *opened) view() (*viewer, error) {
	conn, err := o.dial()
	if err != nil {
		return nil, err
	}
	v, err := view(conn)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return v, nil
}

// ends waits for its end with a text. Its client's connection and its port end too.
func (o *opened) ends(text string, client net.Conn) {
	o.s.T.Helper()
	select {
	case err := <-o.ended:
		if err != nil || !strings.Contains(o.out.String(), text) {
			o.s.T.Errorf("it ended with %v:\n%s\nwant %q", err, o.out, text)
		}
	case <-time.After(2 * time.Minute):
		o.s.T.Fatalf("it goes on, want %q", text)
	}
	if n, err := client.Read(make([]byte, 1)); err == nil {
		o.s.T.Errorf("its client reads %d bytes", n)
	}
	if conn, err := o.dial(); err == nil {
		_ = conn.Close()
		o.s.T.Error("its port is open still")
	}
}

// The console of a virtual machine, from the start: no rights, no KubeVirt, no such machine; then
// one that opens, has one user, ends in time, with its machine and with the link.
func TestServices_13_ConsoleHasOneUserAndALimit(t *testing.T) {
	s := newSystem(t)
	s.refused("edge1", "sample/vm1", "devices of this cluster have no right to get", 2)
	rights := filepath.Join(s.Root, "manifests", "console")
	s.Kubectl("apply", "-k", rights)
	t.Cleanup(func() { s.Must(s.Run(context.Background(), "kubectl", "delete", "--ignore-not-found", "-k", rights)) })
	s.refused("edge1", "sample/vm1", "KubeVirt is not installed", 2)
	s.make(virtualMachineCRD)
	// kubectl wait ends with an error as long as the CRD has no conditions at all.
	s.WaitFor("the CRD of virtual machines to be served", func(ctx context.Context) error {
		_, err := s.Run(ctx, "kubectl", "get", "virtualmachineinstances.kubevirt.io", "--all-namespaces")
		return err
	})
	api := s.runVirtAPI()
	s.make(virtualMachine("vm1", "edge1"))
	s.make(virtualMachine("vm2", "edge2"))
	pod := s.WaitPods("sample", "app=sample", "edge1", 1)[0].Name
	s.refused("edge1", "sample/"+pod, "no virtual machine sample/"+pod+" runs on this device; only virtual machines of KubeVirt have such a console", 2)
	s.refused("edge1", "sample/vm2", "no virtual machine sample/vm2 runs on this device", 2)
	s.refused("edge1", "sample/vm1 --for 24h", "is not between 1s and modules.console.limit", 2)
	if seen := api.asked(); len(seen) > 0 {
		t.Errorf("KubeVirt was asked: %q", seen)
	}

	o := s.open("sample/vm1")
	first, err := o.view()
	s.Check(err)
	if first.name != "vm1" {
		t.Errorf("the desktop is %q", first.name)
	}
	pixels, err := first.look()
	if err != nil || !bytes.Equal(pixels, screen()) {
		t.Errorf("the screen is %v, %v", pixels, err)
	}
	s.Check(first.press('s'))
	if key := <-api.keys; key != 's' {
		t.Errorf("key %d was pressed", key)
	}
	if seen := api.asked(); len(seen) != 1 || seen[0] != "system:node:edge1 vm1/vnc" {
		t.Errorf("KubeVirt was asked by %q", seen)
	}
	if second, err := o.view(); err == nil || !strings.Contains(err.Error(), "refused: the console of sample/vm1 has a user already") {
		t.Errorf("the second user has %v, %v", second, err)
	}
	s.refused("edge1", "sample/vm1", "is open already, at "+o.address, 1)
	if _, err := s.ask(t.Context(), "tcp", strings.Replace(o.address, "127.0.0.1", edge1, 1)); err == nil {
		t.Error("the console is open to the LAN")
	}
	if status := s.on("edge1", s.Root+"/bin/edgecore status"); !strings.Contains(status, "vnc of sample/vm1 at "+o.address) {
		t.Errorf("the status is\n%s", status)
	}
	s.serialBeside(o)
	_ = first.Close()
	var third *viewer
	s.WaitFor("the next user to be let in", func(context.Context) (err error) { third, err = o.view(); return err })

	s.Kubectl("-n", "sample", "delete", "vmi", "vm1")
	o.ends("the virtual machine sample/vm1 has ended", third)

	s.make(virtualMachine("vm3", "edge1"))
	o = s.open("sample/vm3 --for 5s")
	v, err := o.view()
	s.Check(err)
	o.ends("the time is up", v)

	o = s.open("sample/vm3")
	v, err = o.view()
	s.Check(err)
	s.Cut("edge1")
	o.ends("the link to the cloud ended", v)
	s.refused("edge1", "sample/vm3", "this device is offline", 1)
}

// serialBeside opens the serial console of the same machine, which has a port of its own.
func (s *system) serialBeside(other *opened) {
	s.T.Helper()
	o := s.open("sample/vm1 --serial --for 20s")
	if o.address == other.address {
		s.T.Errorf("both are at %s", o.address)
	}
	conn, err := o.dial()
	s.Check(err)
	defer conn.Close()
	s.Check(conn.SetDeadline(time.Now().Add(30 * time.Second)))
	_, err = io.WriteString(conn, "root\r")
	s.Check(err)
	const want = "vm1 login: root\r"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		s.T.Errorf("the serial console says %q, %v", got, err)
	}
}
