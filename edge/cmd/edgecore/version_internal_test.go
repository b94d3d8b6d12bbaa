package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// The values that `kubectl skerry artefact add` takes for a version that is not its own.
func TestVersion_asJSON(t *testing.T) {
	var out bytes.Buffer
	c := command()
	c.SetOut(&out)
	c.SetArgs([]string{"version", "-o", "json"})
	if err := c.Execute(); err != nil {
		t.Fatal(err)
	}
	var got struct{ Protocol, ProtocolMin, Schema int }
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v in\n%s", err, &out)
	}
	if got.Protocol != protocol.Current || got.ProtocolMin != protocol.Oldest || got.Schema != store.Schema {
		t.Errorf("%+v in\n%s", got, &out)
	}
}
