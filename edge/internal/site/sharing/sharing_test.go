package sharing_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/edge/internal/core/artefact"
	"github.com/skerry-io/skerry/edge/internal/core/launch"
	"github.com/skerry-io/skerry/edge/internal/site/sharing"
)

func bytesOf(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

func targetOf(program []byte) artefact.Target {
	sum := sha256.Sum256(program)
	return artefact.Target{Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: int64(len(program))}
}

type program struct{ *bytes.Reader }

func (program) Close() error { return nil }

// serverOf has programs.
func serverOf(programs ...[]byte) *sharing.Server {
	return sharing.NewServer(func(digest string) (sharing.Program, error) {
		for _, p := range programs {
			if targetOf(p).Digest == digest {
				return program{bytes.NewReader(p)}, nil
			}
		}
		return nil, os.ErrNotExist
	})
}

// site is devices by name: each answers a connection of edge1.
type site map[string]func(ctx context.Context, conn net.Conn)

func (s site) client(t *testing.T) *sharing.Client {
	var nodes []string
	for node := range s {
		nodes = append(nodes, node)
	}
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); all.Wait() })
	return sharing.NewClient(func() []string { return append([]string(nil), nodes...) }, func(_ context.Context, node string) (sharing.Conn, error) {
		if s[node] == nil {
			return nil, errors.New("an older release")
		}
		near, far := net.Pipe()
		all.Go(func() {
			defer far.Close()
			s[node](ctx, far)
		})
		return near, nil
	})
}

func served(by *sharing.Server) func(context.Context, net.Conn) {
	return func(ctx context.Context, conn net.Conn) { by.Serve(ctx, "edge1", conn) }
}

// A program comes whole, or from an offset on, in as many chunks as it takes, from the device that
// has it.
func TestProgramComesFromTheDeviceThatHasIt(t *testing.T) {
	want := bytesOf(5<<20 + 17)
	for name, c := range map[string]struct {
		offset int64
		others []string
	}{
		"whole": {}, "from the middle of a chunk": {offset: 3<<20 + 5}, "the last byte": {offset: int64(len(want)) - 1}, "others have no programs": {others: []string{"old1", "old2"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serverOf(bytesOf(10), want)
				all := site{"edge2": served(serverOf()), "edge3": served(s)}
				for _, o := range c.others {
					all[o] = nil
				}
				client := all.client(t)
				r, node, err := client.Open(t.Context(), targetOf(want), c.offset, nil)
				if err != nil || node != "edge3" {
					t.Fatalf("of %s: %v", node, err)
				}
				defer r.Close()
				got, err := io.ReadAll(r)
				if err != nil || !bytes.Equal(got, want[c.offset:]) {
					t.Errorf("%d bytes, %v", len(got), err)
				}
				synctest.Wait()
				if n := int64(len(want)) - c.offset; s.Sent() != n || client.Received() != n {
					t.Errorf("counted %d sent, %d received", s.Sent(), client.Received())
				}
			})
		})
	}
}

func TestNoDeviceHasIt(t *testing.T) {
	want := bytesOf(100)
	for name, c := range map[string]struct {
		all  site
		skip map[string]bool
		want error
	}{
		"no device":                   {site{}, nil, artefact.ErrNoNeighbour},
		"others":                      {site{"edge2": served(serverOf(bytesOf(3))), "old": nil}, nil, artefact.ErrNoNeighbour},
		"the one is left out":         {site{"edge2": served(serverOf(want))}, map[string]bool{"edge2": true}, artefact.ErrNoNeighbour},
		"busy":                        {site{"edge2": answers([]byte{2}, make([]byte, 12)), "edge3": served(serverOf())}, nil, artefact.ErrNeighboursBusy},
		"a code that is unknown here": {site{"edge2": answers([]byte{77}, make([]byte, 12))}, nil, artefact.ErrNoNeighbour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if _, node, err := c.all.client(t).Open(t.Context(), targetOf(want), 0, c.skip); !errors.Is(err, c.want) {
					t.Errorf("%s: %v", node, err)
				}
			})
		})
	}
}

// answers reads one request, sends bytes, and then reads on until the other end is gone.
func answers(parts ...[]byte) func(context.Context, net.Conn) {
	return func(_ context.Context, conn net.Conn) {
		_, _ = io.ReadFull(conn, make([]byte, 44))
		for _, p := range parts {
			_, _ = conn.Write(p)
		}
		_, _ = io.Copy(io.Discard, conn)
	}
}

func head(size uint64, length uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64([]byte{0}, size), length)
}

// Whatever a member of the site answers, it costs a bounded time, and no byte is taken that was not
// asked for.
func TestFleet_26_HostileAnswers(t *testing.T) {
	want := bytesOf(3 << 20)
	size := uint64(len(want))
	for name, c := range map[string]struct {
		peer func(context.Context, net.Conn)
		most time.Duration
		gets int // bytes of the program, at most
	}{
		"no answer":                       {answers(), 16 * time.Second, 0},
		"half an answer":                  {answers([]byte{0, 0}), 16 * time.Second, 0},
		"another size":                    {answers(head(size+1, 1<<20), want), 0, 0},
		"a size of ever":                  {answers(head(1<<63, 1<<20), want), 0, 0},
		"fewer bytes than it has":         {answers(head(size, 5), want), 0, 0},
		"more bytes than were asked":      {answers(head(size, 2<<20), want), 0, 0},
		"all bytes there are":             {answers(head(size, 0xffffffff), want), 0, 0},
		"bytes of a device that has none": {answers(append([]byte{1}, head(size, 1<<20)[1:]...), want), 0, 0},
		"the bytes end":                   {answers(head(size, 1<<20), want[:1000]), 21 * time.Second, 1000},
		"more follows than was said":      {answers(head(size, 1<<20), want[:1<<20+100]), 21 * time.Second, 1 << 20},
		"it closes":                       {func(_ context.Context, c net.Conn) { _, _ = io.ReadFull(c, make([]byte, 44)) }, 0, 0},
		"a byte a second": {func(ctx context.Context, c net.Conn) {
			answers(head(size, 1<<20))(ctx, &stops{Conn: c})
			for i := range want {
				time.Sleep(time.Second)
				if _, err := c.Write(want[i : i+1]); err != nil {
					return
				}
			}
		}, 21 * time.Second, 20},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				r, _, err := site{"edge2": c.peer}.client(t).Open(t.Context(), targetOf(want), 0, nil)
				var got []byte
				if err == nil {
					got, err = io.ReadAll(r)
					r.Close()
				}
				if err == nil || len(got) > c.gets || !bytes.Equal(got, want[:len(got)]) {
					t.Errorf("%d bytes, %v", len(got), err)
				}
				if took := time.Since(began); took > c.most {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// stops ends a peer's reading.
type stops struct{ net.Conn }

func (s *stops) Read(b []byte) (int, error) {
	if len(b) != 44 {
		return 0, io.EOF
	}
	return s.Conn.Read(b)
}

// asker is a member that speaks the protocol itself.
type asker struct {
	net.Conn
	t *testing.T
}

// ask connects to a server as a device; the server's end is closed with it.
func ask(t *testing.T, s *sharing.Server, node string) asker {
	near, far := net.Pipe()
	var all sync.WaitGroup
	all.Go(func() { s.Serve(t.Context(), node, far) })
	t.Cleanup(func() { near.Close(); all.Wait() })
	return asker{near, t}
}

func (a asker) request(digest string, offset uint64, length uint32) error {
	raw, _ := hex.DecodeString(digest[len("sha256:"):])
	_, err := a.Write(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(raw, offset), length))
	return err
}

// answer is the code, the size, and the bytes; -1 where the connection has ended.
func (a asker) answer() (code int, size uint64, body []byte) {
	b := make([]byte, 13)
	if _, err := io.ReadFull(a, b); err != nil {
		return -1, 0, nil
	}
	body = make([]byte, binary.BigEndian.Uint32(b[9:]))
	_, _ = io.ReadFull(a, body)
	return int(b[0]), binary.BigEndian.Uint64(b[1:]), body
}

// A device gets what it asks for within the bounds, and a member that does not keep to them loses
// its connection.
func TestServerAnswers(t *testing.T) {
	have := bytesOf(2000)
	size := uint64(len(have))
	digest := targetOf(have).Digest
	for name, c := range map[string]struct {
		digest string
		offset uint64
		length uint32
		code   int
		size   uint64
		body   []byte
	}{
		"whether it has it":         {digest, 0, 0, 0, size, nil},
		"a part":                    {digest, 100, 50, 0, size, have[100:150]},
		"more than there is":        {digest, 1990, 1 << 20, 0, size, have[1990:]},
		"from the end on":           {digest, size, 10, 0, size, nil},
		"from beyond the end":       {digest, size + 10, 10, 0, size, nil},
		"another program":           {targetOf([]byte("x")).Digest, 0, 10, 1, 0, nil},
		"a chunk above the bound":   {digest, 0, 1<<20 + 1, -1, 0, nil},
		"an offset above the bound": {digest, 1 << 62, 10, -1, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := ask(t, serverOf(have), "edge1")
				for range 2 { // the connection stays open
					if err := a.request(c.digest, c.offset, c.length); err != nil && c.code != -1 {
						t.Fatal(err)
					}
					code, size, body := a.answer()
					if code != c.code || size != c.size || !bytes.Equal(body, c.body) {
						t.Errorf("code %d, size %d, %d bytes", code, size, len(body))
					}
				}
			})
		})
	}
}

// Members that ask without end, or take without end, or not at all, are bounded; each other device
// still gets a program.
func TestFleet_26_HostileRequests(t *testing.T) {
	have := bytesOf(8 << 20)
	digest := targetOf(have).Digest
	goodGets := func(t *testing.T, s *sharing.Server) {
		t.Helper()
		r, _, err := site{"edge9": func(ctx context.Context, c net.Conn) { s.Serve(ctx, "good", c) }}.client(t).Open(t.Context(), targetOf(have), 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, have) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
	for name, f := range map[string]func(t *testing.T, s *sharing.Server){
		"a flood of questions": func(t *testing.T, s *sharing.Server) {
			a := ask(t, s, "bad")
			n := 0
			for a.request(digest, 0, 0) == nil {
				if code, _, _ := a.answer(); code < 0 {
					break
				}
				n++
			}
			if n > 60 {
				t.Errorf("%d answers at once", n)
			}
		},
		"no question": func(t *testing.T, s *sharing.Server) {
			began := time.Now()
			if code, _, _ := ask(t, s, "bad").answer(); code != -1 || time.Since(began) > 11*time.Second {
				t.Errorf("code %d after %v", code, time.Since(began))
			}
		},
		"no byte is read": func(t *testing.T, s *sharing.Server) {
			var all []asker
			for _, node := range []string{"a", "b", "c", "d"} { // all that may have bytes at once
				a := ask(t, s, node)
				if err := a.request(digest, 0, 1<<20); err != nil {
					t.Fatal(err)
				}
				all = append(all, a)
			}
			synctest.Wait()
			fifth := ask(t, s, "e")
			if err := fifth.request(digest, 0, 1<<20); err != nil {
				t.Fatal(err)
			}
			if code, _, _ := fifth.answer(); code != 2 {
				t.Errorf("a fifth device: code %d", code)
			}
			time.Sleep(11 * time.Second)
			for _, a := range all {
				if n, err := io.Copy(io.Discard, a); n > 0 || err != nil {
					t.Errorf("%d bytes, %v", n, err)
				}
			}
		},
		"all bytes, again and again": func(t *testing.T, s *sharing.Server) {
			began, got := time.Now(), 0
			for busy := false; !busy; {
				a := ask(t, s, "bad")
				for a.request(digest, 0, 1<<20) == nil {
					code, _, body := a.answer()
					got += len(body)
					if busy = code == 2; busy || code == -1 {
						break
					}
				}
				a.Close()
			}
			if took := time.Since(began).Seconds(); float64(got)/took > 8<<20+1<<20/took || got > 3<<30 {
				t.Errorf("%d bytes in %v s", got, took)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serverOf(have)
				f(t, s)
				goodGets(t, s)
			})
		})
	}
}

// The programs that a device has for others are those of its slots, and its package's while that
// runs.
func TestPrograms(t *testing.T) {
	dir := t.TempDir()
	d := launch.Directory{Path: filepath.Join(dir, "bin"), Disk: launch.System{}}
	self := filepath.Join(dir, "edgecore")
	contents := map[launch.Slot][]byte{launch.Package: []byte("package"), launch.A: []byte("slot a"), launch.B: []byte("slot b")}
	files := map[launch.Slot]string{launch.Package: self, launch.A: d.Program(launch.A), launch.B: d.Program(launch.B)}
	for slot, file := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, contents[slot], 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	of := func(slot launch.Slot) launch.Program {
		return launch.Program{Slot: slot, Digest: targetOf(contents[slot]).Digest}
	}
	for name, c := range map[string]struct {
		state launch.State
		self  string
		want  []string
	}{
		"nothing was ever tried": {launch.State{}, self, []string{"package"}},
		"a version is confirmed": {launch.State{Confirmed: of(launch.A), Former: &launch.Former{Program: launch.Program{}}}, "", []string{"slot a"}},
		"a version is tried":     {launch.State{Trial: &launch.Trial{Program: of(launch.A)}}, self, []string{"package", "slot a"}},
		"two versions":           {launch.State{Confirmed: of(launch.B), Former: &launch.Former{Program: of(launch.A)}}, "", []string{"slot a", "slot b"}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := d.Save(c.state); err != nil {
				t.Fatal(err)
			}
			p := &sharing.Programs{Directory: d, Self: c.self}
			var got []string
			for _, slot := range []launch.Slot{launch.Package, launch.A, launch.B} {
				f, err := p.Open(targetOf(contents[slot]).Digest)
				if err != nil {
					continue
				}
				raw, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
				if err := errors.Join(err, f.Close()); err != nil {
					t.Error(err)
				}
				got = append(got, string(raw))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("programs (-want +got):\n%s", diff)
			}
		})
	}
}
