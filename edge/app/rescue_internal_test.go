package app

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/edge/internal/core/artefact"
)

// The questions of a device that is rescued, and the answers that it reads, are frozen: the cloud
// may be years newer. A difference here is a mistake in the change, never in the file.
func TestRescueQuestionsAreFrozen(t *testing.T) {
	frozen := map[string]string{}
	raw, err := os.ReadFile("../../common/topic/testdata/rescue-http.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if frozen[name], err = strconv.Unquote(text); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	var target, question string
	r := newRescue(func(_ context.Context, to string) (net.Conn, error) {
		target = to
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			var sent bytes.Buffer
			read, err := http.ReadRequest(bufio.NewReader(io.TeeReader(far, &sent)))
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, read.Body)
			question = sent.String()
			_, _ = io.WriteString(far, frozen[strings.Trim(strings.ReplaceAll(read.URL.Path, "/up", ""), "/")+"-"+read.Method+"-answer"])
		}()
		return near, nil
	})
	asked := func(name string) {
		t.Helper()
		if target != protocol.RescueTarget || question != frozen[name] {
			t.Errorf("%s is asked of %q by\n%q, was\n%q", name, target, question, frozen[name])
		}
	}
	facts, err := r.facts(t.Context())
	asked("facts-GET")
	if want := (rescueFacts{Kubernetes: "v1.37.2", Protocol: 5, ProtocolMin: 4}); err != nil || facts != want {
		t.Errorf("facts are read as %+v, %v", facts, err)
	}
	all, err := r.Operations(t.Context())
	asked("operations-GET")
	if err != nil || len(all) != 1 || all[0].Name != "up" || all[0].UID != "up" || all[0].Spec.NodeName != "edge1" || all[0].Spec.Upgrade == nil || all[0].Spec.Upgrade.Version != "v1.4.0" {
		t.Errorf("operations are read as %+v, %v", all, err)
	}
	if err := r.Report(t.Context(), "up", "up", []byte(`{"attempts":1}`)); err != nil {
		t.Error(err)
	}
	asked("operations-PUT")
	link := artefact.Link{Dial: func(_ context.Context, to string) (net.Conn, error) {
		target = to
		near, _ := net.Pipe()
		return near, nil
	}}
	stream, err := link.Open(t.Context(), "edgecore-v1.4.0-amd64.zst", 7)
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Close()
	if target != frozen["artefact"] {
		t.Errorf("an artefact is %q, was %q", target, frozen["artefact"])
	}
}
