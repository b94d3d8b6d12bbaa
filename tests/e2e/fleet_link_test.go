package e2e_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/artefactrepo"
	"github.com/skerry-io/skerry/tests/cluster/lab"
)

// sent is a stream of an artefact, as a replica of cloudcore logs its end: which bytes it sent.
type sent struct{ offset, bytes int64 }

// streams are those by which the replicas sent a file, by their offsets.
func (f *fleet) streams(file string) (all []sent) {
	f.T.Helper()
	line := regexp.MustCompile(`an artefact.*artefact="?` + regexp.QuoteMeta(file) + `"? offset=([0-9]+) .*bytes=([0-9]+)`)
	for _, log := range f.written(nil) {
		for _, m := range line.FindAllStringSubmatch(log, -1) {
			offset, err := strconv.ParseInt(m[1], 10, 64)
			f.Check(err)
			bytes, err := strconv.ParseInt(m[2], 10, 64)
			f.Check(err)
			all = append(all, sent{offset, bytes})
		}
	}
	slices.SortFunc(all, func(a, b sent) int { return cmp.Compare(a.offset, b.offset) })
	return all
}

// longestRenewal is the longest time between two renewals of edge1's Lease, which cloudcore makes
// of its heartbeats, until stop is called.
func (f *fleet) longestRenewal() (stop func() time.Duration) {
	f.T.Helper()
	ctx, cancel := context.WithCancel(f.T.Context())
	w, err := f.Client.CoordinationV1().Leases("kube-node-lease").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=edge1"})
	f.Check(err)
	longest := make(chan time.Duration, 1)
	go func() {
		last, most := time.Now(), time.Duration(0)
		for range w.ResultChan() {
			most, last = max(most, time.Since(last)), time.Now()
		}
		longest <- max(most, time.Since(last))
	}()
	return func() time.Duration {
		cancel()
		w.Stop()
		return <-longest
	}
}

// An upgrade comes down a link of 256 kbit/s that is cut 20 times, some of them until the device
// has given its link up. The cloud sends each part of it once, except the bytes in flight when the
// link is lost; the cable carries little more; and no heartbeat is so late that the link is given
// up, or the Lease not renewed.
func TestFleet_10_ThinLinkIsCutTwentyTimes(t *testing.T) {
	newSystem(t).upgradeOverAThinLink("websocket", "v9.10.0")
}

func TestFleet_10_ThinQUICLinkIsCutTwentyTimes(t *testing.T) {
	newSystem(t).upgradeOverAThinLink("quic", "v9.10.1")
}

// hub configures the link of edge1, and restarts its edgecore.
func (f *fleet) hub(transport string) {
	f.T.Helper()
	f.Must(f.Run(context.WithoutCancel(f.T.Context()), "set", "edge1", "modules.edgeHub.transport="+transport))
}

const (
	cuts, lasting = 20, 5 // each so many-th outlasts the link
	moment        = 300 * time.Millisecond
	// inFlight is the bytes of a stream that cloudcore has sent and the device has not received: a
	// window, and the blocks at its ends. The window is what the link carries in twice the time of
	// an answer: 32 KiB here, and 128 KiB where a busy machine answers after 2 s.
	inFlight = 144 << 10
)

// cutsDuring cuts the link 20 times while a file comes. had is how much of it the device had when
// it lost its link, and longest the longest cut.
func (f *fleet) cutsDuring(target artefactrepo.Target) (had []int64, longest time.Duration) {
	f.T.Helper()
	part := f.path("edge1", "/var/lib/skerry/artefacts/"+target.SHA256+".part")
	fetched := func() int64 {
		info, err := os.Stat(part)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	for i := range cuts {
		f.WaitFor(fmt.Sprintf("bytes for cut %d", i+1), func(context.Context) error {
			if n := fetched(); n < target.Length*int64(i+1)/(cuts+1) {
				return fmt.Errorf("%d of %d bytes came", n, target.Length)
			}
			return nil
		})
		cut := time.Now()
		if i%lasting == lasting/2 { // not the last, when there may be nothing left to ask for
			f.CutSilently("edge1")
			f.waitUnlinked("edge1")
			had = append(had, fetched())
		} else {
			f.Cut("edge1")
			<-time.After(moment)
		}
		f.Heal("edge1")
		longest = max(longest, time.Since(cut))
	}
	return had, longest
}

func (s *system) upgradeOverAThinLink(transport, version string) {
	s.T.Helper()
	t, f := s.T, s.fleet()
	t.Cleanup(func() {
		f.Mend(context.WithoutCancel(t.Context()))
		f.hub(options().Link)
	})
	f.hub(transport)
	f.waitLinked("edge1")
	noise := make([]byte, 640<<10)
	_, _ = rand.NewChaCha8([32]byte{10}).Read(noise)
	target := f.add(version, append(script("exec "+filepath.Join(f.Root, "bin", "edgecore")+` "$@"`), noise...), nil)
	f.Check(f.Trial.Shape(t.Context(), "edge1", lab.Shape{Rate: 256_000}))
	began, onCable, sessions := time.Now(), f.linkBytes("edge1"), f.sessions()
	renewal := f.longestRenewal()
	f.upgrade("thin", version, "")
	had, longest := f.cutsDuring(target)
	f.WaitFor("the last byte", func(context.Context) error {
		if all := f.streams(target.Name); len(all) == 0 || all[len(all)-1].offset+all[len(all)-1].bytes < target.Length {
			return fmt.Errorf("%d streams: %v", len(all), all)
		}
		return nil
	})
	took, crossed, opened := time.Since(began), f.linkBytes("edge1")-onCable, f.sessions()-sessions
	late := renewal()
	f.Check(f.Trial.Shape(t.Context(), "edge1", lab.Shape{})) // the pods' statuses that the new program reports are no part of this
	if o := f.waitOperation("thin", "ended", ended); !isDone(v1alpha1.OperationConfirmed)(o) || o.Status.Upgrade.Fetched != target.Length {
		t.Errorf("the operation ended with %+v", o.Status)
	}

	var all []sent
	f.WaitFor("the ends of all streams", func(context.Context) error {
		if all = f.streams(target.Name); len(all) <= len(had) {
			return fmt.Errorf("%d streams have ended: %v", len(all), all)
		}
		return nil
	})
	t.Logf("%v for %d bytes; %d crossed the cable; %d sessions opened; the longest cut took %v, and a renewal of the Lease %v; streams %v",
		took.Round(time.Second), target.Length, crossed, opened, longest.Round(100*time.Millisecond), late.Round(100*time.Millisecond), all)
	if len(all) != len(had)+1 || opened < len(had) || opened > len(had)+1 { // the new program may have one already
		t.Errorf("%d streams in %d more sessions, for %d cuts that a link does not outlast", len(all), opened, len(had))
	}
	for i, next := range all[min(1, len(all)):] {
		before := all[i]
		if next.offset > before.offset+before.bytes || before.offset+before.bytes-next.offset > inFlight {
			t.Errorf("after %d bytes from %d on the device asked for those from %d on", before.bytes, before.offset, next.offset)
		}
		if i < len(had) && next.offset < had[i] {
			t.Errorf("the device had %d bytes, and asked for those from %d on", had[i], next.offset)
		}
	}
	if len(all) > 0 && (all[0].offset != 0 || all[len(all)-1].offset+all[len(all)-1].bytes != target.Length) {
		t.Errorf("the streams are %v, for %d bytes", all, target.Length)
	}
	// Headers, acknowledgements, heartbeats and the usual reports; the sets of the new sessions.
	if most := target.Length*5/4 + int64(len(had))*inFlight; crossed > most {
		t.Errorf("%d bytes crossed the cable for %d, at most %d may", crossed, target.Length, most)
	}
	// cloudcore renews every 10 s, and with a new link.
	if most := 15*time.Second + longest; late > most {
		t.Errorf("the Lease was not renewed for %v, at most %v may be", late, most)
	}
}

// sessions is how often edge1 has opened a session, by the log of its edgecore.
func (f *fleet) sessions() int {
	f.T.Helper()
	log, err := os.ReadFile(f.Trial.LogPath("edge1", "edgecore"))
	f.Check(err)
	return strings.Count(string(log), "Session opened")
}
