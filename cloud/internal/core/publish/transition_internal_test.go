package publish

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/golden"
)

// objects reads "a@5 b@6": names and versions. The uid is that of the name, "a'@5" is another a.
func objects(text string) map[kube.Key]*kube.Object {
	out := map[kube.Key]*kube.Object{}
	for _, f := range strings.Fields(text) {
		name, version, _ := strings.Cut(f, "@")
		key := kube.Key{Namespace: "ns", Name: strings.TrimSuffix(name, "'")}
		out[key] = &kube.Object{Key: key, Version: version, Sum: kube.SumOf("uid-"+name, version)}
	}
	return out
}

func entriesOf(text string) (out []*topicpb.Entry) {
	for _, f := range strings.Fields(text) {
		name, version, _ := strings.Cut(f, "@")
		out = append(out, &topicpb.Entry{Namespace: "ns", Name: strings.TrimSuffix(name, "'"), Uid: "uid-" + name, ResourceVersion: version})
	}
	return out
}

// digestOfText is the digest that an edge with these objects sends.
func digestOfText(text string) *topicpb.Digest {
	held := objects(text)
	d := digestOf(held)
	p := &topicpb.Digest{Count: d.count, Sum: d.sum[:]}
	for _, o := range held {
		v, err := strconv.ParseUint(o.Version, 10, 64)
		if err != nil {
			p.Newest = 0
			break
		}
		p.Newest = max(p.Newest, v)
	}
	return p
}

// transcript is one resource of one session, event by event.
type transcript struct {
	strings.Builder
	comparison
	ours string // cloudcore's objects
}

func (x *transcript) holds(text string) {
	fmt.Fprintf(x, "the edge holds: %s\n", text)
	p := digestOfText(text)
	x.edge, _ = digestFrom(p)
	x.newest = p.Newest
}

func (x *transcript) cloud(text string) {
	fmt.Fprintf(x, "cloudcore has:  %s\n", text)
	x.ours = text
}

func (x *transcript) note(event string, e effects) {
	var did []string
	names := func(keys []kube.Key) string {
		var out []string
		for _, k := range keys {
			out = append(out, k.Name)
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	if len(e.send) > 0 {
		did = append(did, "send "+names(e.send))
	}
	if e.expect {
		did = append(did, "expect")
	}
	if e.ask != nil {
		did = append(did, fmt.Sprintf("ask buckets=%v only=%d", e.ask.Buckets, len(e.ask.Only)))
	}
	if e.catchUp > 0 {
		did = append(did, fmt.Sprintf("catch up to %d", e.catchUp))
	}
	for _, key := range slices.SortedFunc(maps.Keys(e.confirm), func(a, b kube.Key) int { return strings.Compare(a.Name, b.Name) }) {
		if v := e.confirm[key]; v == kube.UnknownVersion {
			did = append(did, "confirm "+key.Name+" by a read")
		} else {
			did = append(did, fmt.Sprintf("confirm %s as of %d", key.Name, v))
		}
	}
	if e.settled {
		did = append(did, "settled")
	}
	fmt.Fprintf(x, "  %-12s -> %s: %s\n", event, x.state, strings.Join(did, ", "))
}

func (x *transcript) begin() { x.note("begin", x.comparison.begin(objects(x.ours), nil)) }

func (x *transcript) inventory(text string) {
	x.note("entries", x.entries(objects(x.ours), entriesOf(text), func(kube.Key) bool { return false }))
}

func (x *transcript) caughtUp() {
	x.note("caught up", x.confirmed(objects(x.ours), func(kube.Key) bool { return false }))
}

func TestTransitions(t *testing.T) {
	for name, play := range map[string]func(x *transcript){
		"nothing-held": func(x *transcript) {
			x.holds("")
			x.cloud("a@5 b@6")
			x.begin()
		},
		"equal": func(x *transcript) {
			x.holds("a@5 b@6")
			x.cloud("a@5 b@6")
			x.begin()
		},
		"written": func(x *transcript) {
			x.holds("a@5 b@6")
			x.written = 7
			x.cloud("a@5 b@6")
			x.begin()
			x.cloud("a@5 b@7")
			x.begin()
			x.note("reached", x.reached(false))
		},
		"written-and-lost": func(x *transcript) {
			x.holds("a@5 b@6")
			x.written = 7
			x.cloud("a@5 b@6")
			x.begin()
			x.begin() // by a consistent read, with the same result
		},
		"newer": func(x *transcript) {
			x.holds("a@5 b@6")
			x.cloud("a@7 b@6 c@8")
			x.begin()
			x.note("reached", x.reached(false))
		},
		"newer-and-a-lagging-watch": func(x *transcript) {
			x.holds("a@5 b@6")
			x.cloud("a@7 b@6 c@8")
			x.begin()
			x.note("reached", x.reached(true))
			x.inventory("a@7 b@6 c@8")
		},
		"surprised": func(x *transcript) {
			x.holds("a@5 b@6")
			x.cloud("b@6 c@8")
			x.begin()
			x.note("reached", x.reached(false))
			x.note("unexpected", x.unexpected(digestOfText("a@5 b@6 c@8")))
			x.inventory("a@5 b@6 c@8")
			x.caughtUp()
			x.note("reached", x.reached(false))
		},
		"deleted-meanwhile": func(x *transcript) {
			x.holds("a@5 b@6")
			x.cloud("b@6")
			x.begin()
			x.inventory("a@5 b@6")
			x.caughtUp()
		},
		"cloudcore-lags": func(x *transcript) {
			x.holds("a@9 b@6 new@8")
			x.cloud("a@5 b@6")
			x.begin()
			x.inventory("a@9 b@6 new@8")
			x.cloud("a@9 b@6 new@8")
			x.caughtUp()
		},
		"the-cluster-went-back": func(x *transcript) {
			x.holds("a@9 b@6 new@8 again'@7")
			x.cloud("a@5 b@6 again@3")
			x.begin()
			x.inventory("a@9 b@6 new@8 again'@7")
			x.caughtUp() // by a consistent read, with the same result
		},
		"versions-that-are-no-numbers": func(x *transcript) {
			x.holds("a@content-x b@content-y")
			x.cloud("a@content-z b@content-y")
			x.begin()
			x.inventory("a@content-x b@content-y")
			x.caughtUp()
		},
		"recreated": func(x *transcript) {
			x.holds("a@5 b@6")
			x.cloud("a'@9 b@6")
			x.begin()
			x.note("reached", x.reached(false))
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := &transcript{}
			play(x)
			golden.Check(t, filepath.Join("testdata", name+".golden"), x.String())
		})
	}
}

// A sent object is never older than the edge's, unless it was confirmed.
func TestNothingOlderIsSentUnconfirmed(t *testing.T) {
	c := comparison{state: expecting, edge: digest{count: 3}, newest: 10}
	for text, want := range map[string]bool{"a@11": true, "a@10": false, "a@3": false, "a@content-x": false} {
		for _, o := range objects(text) {
			if got := c.sendable(o); got != want {
				t.Errorf("%s: sendable is %v, want %v", text, got, want)
			}
		}
	}
	if c.sendable(nil) {
		t.Error("a deletion can be sent before the comparison")
	}
}
