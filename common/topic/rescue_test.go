package topic_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// The messages of a rescue session are frozen: devices that are years old send and read these very
// bytes. A difference here is a mistake in the change, never in the file.
func TestRescueIsFrozen(t *testing.T) {
	raw, err := os.ReadFile("testdata/rescue.hex")
	if err != nil {
		t.Fatal(err)
	}
	frozen := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		name, bytes, _ := strings.Cut(strings.TrimSpace(line), " ")
		frozen[name] = bytes
	}
	heartbeat := &topicpb.Heartbeat{Sequence: 3, KubeletAlive: true}
	messages := map[string]message.Message{
		"hello": topic.Hello.New(message.Resource{}, &topicpb.Hello{
			Protocol: 2, ProtocolMin: 1, Version: "v0.1.0", BootId: "b", Epoch: 7, KeepaliveMillis: 10000, Features: []string{protocol.FeatureRescue},
		}),
		"welcome": topic.Welcome.New(message.Resource{}, &topicpb.Welcome{
			Protocol: protocol.Rescue, Version: "v9.0.0", Instance: "i", UnixMillis: 1, Streams: true, Features: []string{protocol.FeatureRescue},
		}),
		"heartbeat":        topic.Heartbeat.New(message.Resource{}, heartbeat),
		"heartbeat-answer": topic.HeartbeatAnswer.New(message.Resource{}, heartbeat),
		"open":             topic.StreamOpen.New(message.Resource{}, &topicpb.StreamOpen{Id: 1<<40 + 1, Window: 16384, Target: protocol.RescueTarget}),
		"window":           topic.StreamWindow.New(message.Resource{}, &topicpb.StreamWindow{Id: 1<<40 + 1, Bytes: 16384}),
		"data":             topic.StreamData.New(message.Resource{}, &topicpb.StreamData{Id: 1<<40 + 1, Data: []byte("GET /facts"), Fin: true}),
		"close":            topic.StreamClose.New(message.Resource{}, &topicpb.StreamClose{Id: 1<<40 + 1, Reason: "r"}),
	}
	table := topic.NewTable()
	for name, m := range messages {
		e, now, err := table.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		line := fmt.Sprintf("%d:%x", e.Number, now)
		if line != frozen[name] {
			t.Errorf("%s is %s, was %s", name, line, frozen[name])
			continue
		}
		_, text, _ := strings.Cut(frozen[name], ":")
		old, err := hex.DecodeString(text)
		if err != nil || !bytes.Equal(old, now) {
			t.Fatalf("%s: %v", name, err)
		}
		read, err := table.Decode(m.Key(), old)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m.Content.(proto.Message), read.(proto.Message), protocmp.Transform()); diff != "" {
			t.Errorf("%s is read otherwise: -sent +read\n%s", name, diff)
		}
	}
	if len(frozen) != len(messages) {
		t.Errorf("%d messages are frozen, %d are compared", len(frozen), len(messages))
	}
}
