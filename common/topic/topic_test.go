package topic_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// The wire contract, in one readable place: a change here is a change between an edge of today and
// a cloud of yesterday.
func TestTable_Entries(t *testing.T) {
	type line struct {
		Number                          uint32
		Topic, Class, Delivery, Payload string
	}
	var got []line
	for _, e := range topic.NewTable().Entries() {
		got = append(got, line{e.Number, e.Key.String(), e.Class.String(), e.Delivery.String(), e.Payload})
	}
	want := []line{
		{20, "api.query", "answer", "every", "skerry.topic.v1.APIRequest"},
		{21, "api.response", "answer", "every", "skerry.topic.v1.APIResponse"},
		{11, "event.response", "answer", "every", "skerry.topic.v1.WriteResult"},
		{10, "event.update", "bulk", "every", "skerry.topic.v1.Write"},
		{4, "heartbeat.response", "urgent", "latest", "skerry.topic.v1.Heartbeat"},
		{3, "heartbeat.update", "urgent", "latest", "skerry.topic.v1.Heartbeat"},
		{1, "hello.insert", "urgent", "every", "skerry.topic.v1.Hello"},
		{2, "hello.response", "urgent", "every", "skerry.topic.v1.Welcome"},
		{5, "interest.update", "normal", "every", "skerry.topic.v1.Interests"},
		{6, "inventory.query", "normal", "every", "skerry.topic.v1.InventoryRequest"},
		{7, "inventory.response", "normal", "every", "skerry.topic.v1.Inventory"},
		{29, "metrics.response", "stream", "every", "skerry.topic.v1.NodeMetricsResult"},
		{28, "metrics.update", "stream", "every", "skerry.topic.v1.NodeMetrics"},
		{15, "nodestatus.response", "answer", "every", "skerry.topic.v1.WriteResult"},
		{14, "nodestatus.update", "normal", "every", "skerry.topic.v1.Write"},
		{17, "pod.response", "answer", "every", "skerry.topic.v1.WriteResult"},
		{16, "pod.update", "normal", "every", "skerry.topic.v1.Write"},
		{13, "podstatus.response", "answer", "every", "skerry.topic.v1.WriteResult"},
		{12, "podstatus.update", "normal", "every", "skerry.topic.v1.Write"},
		{19, "report.response", "answer", "every", "skerry.topic.v1.WriteResult"},
		{18, "report.update", "normal", "every", "skerry.topic.v1.Write"},
		{26, "site.query", "normal", "latest", "skerry.topic.v1.SiteRequest"},
		{27, "site.update", "normal", "latest", "skerry.topic.v1.Site"},
		{9, "state.response", "answer", "latest", "skerry.topic.v1.StateAck"},
		{8, "state.update", "normal", "every", "skerry.topic.v1.State"},
		{25, "stream.delete", "stream", "every", "skerry.topic.v1.StreamClose"},
		{22, "stream.insert", "answer", "every", "skerry.topic.v1.StreamOpen"},
		{23, "stream.response", "answer", "every", "skerry.topic.v1.StreamWindow"},
		{24, "stream.update", "stream", "every", "skerry.topic.v1.StreamData"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestTable_roundTrip(t *testing.T) {
	table := topic.NewTable()
	for name, m := range map[string]message.Message{
		"hello": topic.Hello.New(message.Resource{}, &topicpb.Hello{Protocol: topic.Protocol, Version: "v1", BootId: "b", Epoch: 1 << 60}),
		"state": topic.State.New(message.Resource{}, &topicpb.State{Sequence: 3, Changes: []*topicpb.Changes{{
			Resource: &topicpb.Resource{Version: "v1", Resource: "pods"},
			Items:    []*topicpb.Change{{Namespace: "default", Name: "a", Object: []byte("k8s\x00...")}, {Name: "b", Deleted: true}},
		}}, Synced: []uint64{1, 2}}),
		"objects that say their names": topic.State.New(message.Resource{}, unnamed()),
		"interests":                    topic.Interests.New(message.Resource{}, &topicpb.Interests{Interests: []*topicpb.Interest{{Id: 1, Dependencies: true}}, Unnamed: true}),
		"an empty one":                 topic.StateAck.New(message.Resource{}, &topicpb.StateAck{}),
	} {
		t.Run(name, func(t *testing.T) {
			entry, b, err := table.Encode(m)
			if err != nil {
				t.Fatal(err)
			}
			got, err := table.Decode(entry.Key, b)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(m.Content, got, protocmp.Transform()); diff != "" {
				t.Errorf("content (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTable_refuses(t *testing.T) {
	table := topic.NewTable()
	unknown := message.NewTopic[*topicpb.Hello]("gossip", message.Insert, message.Every)
	wrong := topic.Hello.New(message.Resource{}, nil)
	wrong.Content = &topicpb.Welcome{}
	noProto := topic.Hello.New(message.Resource{}, nil)
	noProto.Content = "hello"
	badText := topic.Hello.New(message.Resource{}, &topicpb.Hello{Version: "\xff"})
	for name, c := range map[string]struct {
		m   message.Message
		err error // nil: any
	}{
		"an unknown topic":      {unknown.New(message.Resource{}, &topicpb.Hello{}), topic.ErrUnknown},
		"another's content":     {wrong, message.ErrWrongContent},
		"content of no payload": {noProto, message.ErrWrongContent},
		"a refusal":             {topic.Hello.New(message.Resource{}, nil).Answer(errors.New("no")), message.ErrWrongContent},
		"text that is no UTF-8": {badText, nil},
	} {
		if _, b, err := table.Encode(c.m); err == nil || c.err != nil && !errors.Is(err, c.err) || b != nil {
			t.Errorf("encoding %s: %q, %v; want %v", name, b, err, c.err)
		}
	}
	for name, c := range map[string]struct {
		key message.Key
		b   []byte
		err error
	}{
		"an unknown topic":      {unknown.Key(), nil, topic.ErrUnknown},
		"half a field":          {topic.Hello.Key(), []byte{0x12, 0x05, 'a'}, nil},
		"a length of 2^63":      {topic.State.Key(), []byte{0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, nil},
		"text that is no UTF-8": {topic.Hello.Key(), []byte{0x12, 0x01, 0xff}, nil},
	} {
		if got, err := table.Decode(c.key, c.b); err == nil || c.err != nil && !errors.Is(err, c.err) || got != nil {
			t.Errorf("decoding %s: %v, %v; want %v", name, got, err, c.err)
		}
	}
}

// An older end gets unknown fields: it reads the rest.
func TestTable_unknownFields(t *testing.T) {
	b, err := proto.Marshal(&topicpb.StateAck{Sequence: 9})
	if err != nil {
		t.Fatal(err)
	}
	b = append(b, 0xf8, 0x07, 0x01) // field 127, varint 1
	got, err := topic.NewTable().Decode(topic.StateAck.Key(), b)
	if err != nil || got.(*topicpb.StateAck).Sequence != 9 {
		t.Errorf("got %v, %v; want sequence 9", got, err)
	}
}

// unnamed is a State whose objects contain their names themselves.
func unnamed() *topicpb.State {
	return &topicpb.State{Sequence: 3, Changes: []*topicpb.Changes{{
		Resource: &topicpb.Resource{Version: "v1", Resource: "configmaps"},
		Items: []*topicpb.Change{
			{Object: []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"}}`)}, {Namespace: "default", Name: "b", Deleted: true},
		},
	}}, Synced: []uint64{1}}
}

func FuzzTable_Decode(f *testing.F) {
	table := topic.NewTable()
	entries := table.Entries()
	said, err := proto.Marshal(unnamed())
	if err != nil {
		f.Fatal(err)
	}
	for i := range entries {
		f.Add(i, []byte{})
		f.Add(i, said)
		f.Add(i, []byte{0x0a, 0x02, 0x08, 0x01, 0x18, 0x01}) // Interests that ask for unnamed objects
		f.Add(i, []byte{0x08, 0x01, 0x12, 0x03, 'a', 'b', 'c'})
		for _, seed := range attacks() {
			f.Add(i, seed)
		}
	}
	f.Fuzz(func(t *testing.T, i int, b []byte) {
		if i < 0 || i >= len(entries) {
			return
		}
		content, err := table.Decode(entries[i].Key, b)
		if err != nil {
			return
		}
		// A decoded message can be encoded, and is then decoded as the same.
		m := message.Message{Route: message.Route{Kind: entries[i].Key.Kind, Operation: entries[i].Key.Operation}, Content: content}
		_, again, err := table.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		second, err := table.Decode(entries[i].Key, again)
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(content.(proto.Message), second.(proto.Message)) {
			t.Errorf("%s: %v became %v", entries[i].Key, content, second)
		}
	})
}

// Every payload that the contract has is carried by some topic, or is a part of one that is.
func TestTable_coversTheContract(t *testing.T) {
	used := map[protoreflect.FullName]bool{}
	var use func(d protoreflect.MessageDescriptor)
	use = func(d protoreflect.MessageDescriptor) {
		if used[d.FullName()] {
			return
		}
		used[d.FullName()] = true
		for i := range d.Fields().Len() {
			if part := d.Fields().Get(i).Message(); part != nil {
				use(part)
			}
		}
	}
	all := topicpb.File_topic_proto.Messages()
	for _, e := range topic.NewTable().Entries() {
		i := slices.IndexFunc(slices.Collect(messages(all)), func(d protoreflect.MessageDescriptor) bool { return string(d.FullName()) == e.Payload })
		if i < 0 {
			t.Fatalf("%s: %s is not in topic.proto", e.Key, e.Payload)
		}
		use(all.Get(i))
	}
	for d := range messages(all) {
		if !used[d.FullName()] {
			t.Errorf("%s is in topic.proto and in no topic", d.FullName())
		}
	}
}

func messages(all protoreflect.MessageDescriptors) func(func(protoreflect.MessageDescriptor) bool) {
	return func(yield func(protoreflect.MessageDescriptor) bool) {
		for i := range all.Len() {
			if !yield(all.Get(i)) {
				return
			}
		}
	}
}

// A device's message that cloudcore decodes takes no more memory than its bounds, whatever its
// length on the wire.
func FuzzTable_Bounds(f *testing.F) {
	bounds := topic.UpBounds()
	table := topic.NewTable().Receiving(topic.Up, bounds)
	entries := table.Entries()
	for i := range entries {
		f.Add(i, []byte{0x0a, 0x02, 0x08, 0x01, 0x18, 0x01}) // Interests that ask for unnamed objects
		for _, seed := range attacks() {
			f.Add(i, seed)
		}
	}
	f.Fuzz(func(t *testing.T, i int, b []byte) {
		if i < 0 || i >= len(entries) {
			return
		}
		e, err := table.Numbered(entries[i].Number) // as a link reads it
		if (err == nil) != (entries[i].Goes&topic.Up != 0) {
			t.Errorf("%s from a device: %v", entries[i].Key, err)
		}
		if err != nil {
			return
		}
		content, err := table.Decode(e.Key, b)
		if err != nil {
			return
		}
		messages, longest := 0, 0
		var count func(protoreflect.Message)
		count = func(m protoreflect.Message) {
			messages++
			m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
				one := func(v protoreflect.Value) {
					switch field.Kind() {
					case protoreflect.MessageKind:
						count(v.Message())
					case protoreflect.StringKind:
						longest = max(longest, len(v.String()))
					}
				}
				switch {
				case field.IsMap():
				case field.IsList():
					for j := range v.List().Len() {
						one(v.List().Get(j))
					}
				default:
					one(v)
				}
				return true
			})
		}
		count(content.(proto.Message).ProtoReflect())
		if messages > bounds.Memory/100 || longest > bounds.String {
			t.Errorf("%s: %d messages, the longest text of %d bytes, of %d bytes", entries[i].Key, messages, longest, len(b))
		}
	})
}

// attacks are payloads that are small on the wire and large in memory, or long where there
// are names.
func attacks() [][]byte {
	long := func(field byte, n int) []byte { // a string or message of n bytes in a field
		b := protowire.AppendTag(nil, protowire.Number(field), protowire.BytesType)
		return protowire.AppendBytes(b, bytes.Repeat([]byte("a"), n))
	}
	return [][]byte{
		bytes.Repeat([]byte{0x0a, 0x00}, 50_000), // empty elements of field 1, 2
		bytes.Repeat([]byte{0x12, 0x00}, 50_000),
		bytes.Repeat([]byte{0x0a, 0x02, 0x0a, 0x00}, 20_000), // nested
		long(1, 17<<10), long(2, 17<<10), long(4, 70<<10), // names
		bytes.Repeat([]byte{0x0b}, 200),                                  // groups that never end
		{0x0a, 0xff, 0xff, 0xff, 0xff, 0x07},                             // a length that is not there
		bytes.Repeat([]byte{0xf8, 0xff, 0xff, 0xff, 0x0f, 0x01}, 10_000), // fields of a later version
		bytes.Repeat([]byte{0x0a, 0x80, 0x01}, 100),
	}
}
