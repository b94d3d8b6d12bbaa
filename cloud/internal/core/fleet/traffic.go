package fleet

import (
	"encoding/json"
	"errors"

	"github.com/skerry-io/skerry/common/topic"
)

// Traffic counts a link since it came up, at the time of the Lease's renewal.
type Traffic struct {
	// Wire is the bytes on the wire, headers and acknowledgements included; 0 where the transport
	// does not count them. The handshake of TLS is in them, and in no class.
	Wire Bytes `json:"wire"`
	// Classes are messages by their class, the most urgent first, without the overhead of the
	// transport.
	Classes []Class `json:"classes"`
}

// Bytes are counted both ways: from the device, and to it.
type Bytes struct {
	Up   uint64 `json:"up"`
	Down uint64 `json:"down"`
}

// Class counts one class. As JSON it is an array of its four numbers: it is written
// with each renewal of a Lease.
type Class struct{ UpMessages, UpBytes, DownMessages, DownBytes uint64 }

// MarshalJSON implements json.Marshaler.
func (c Class) MarshalJSON() ([]byte, error) {
	return json.Marshal([4]uint64{c.UpMessages, c.UpBytes, c.DownMessages, c.DownBytes})
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *Class) UnmarshalJSON(raw []byte) error {
	var n [4]uint64
	if err := json.Unmarshal(raw, &n); err != nil {
		return err
	}
	*c = Class{n[0], n[1], n[2], n[3]}
	return nil
}

// checked returns an error for counts that no link can have.
func (t *Traffic) checked() error {
	if t != nil && len(t.Classes) > topic.Classes {
		return errors.New("more classes than there are")
	}
	return nil
}

// total is the bytes on the wire, or where those are not known the sum of the classes.
func (t *Traffic) total() Bytes {
	if t.Wire.Up+t.Wire.Down > 0 {
		return t.Wire
	}
	var sum Bytes
	for _, c := range t.Classes {
		sum.Up += c.UpBytes
		sum.Down += c.DownBytes
	}
	return sum
}
