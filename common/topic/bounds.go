package topic

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// ErrBounds is returned for a payload whose content would take more than the bounds, whatever
// its length on the wire: an empty element of a list takes two bytes there, and some hundred
// when it is decoded.
var ErrBounds = errors.New("above the bounds")

// Bounds limit a decoded payload. They are counted in the bytes, before they are decoded.
type Bounds struct {
	Memory int // bytes that the content will take, about
	String int // the longest name, selector, path, token ...: whatever is text. Objects are bytes
}

const (
	// perMessage is the minimum memory of a generated struct: its state, unknown fields and the
	// pointer to it, with the slack of a list that grew by append.
	perMessage = 128
	// perValue is the memory of a string's or byte slice's header in a list, and more than any
	// number needs.
	perValue = 24
	// depth is more than the contract's messages are nested.
	depth = 8
)

// UpBounds are for the edges' messages: they hold some ten thousand objects at most, and are
// trusted the least.
func UpBounds() Bounds { return Bounds{Memory: 4 << 20, String: 16 << 10} }

// DownBounds are for the cloud's messages.
func DownBounds() Bounds { return Bounds{Memory: 32 << 20, String: 64 << 10} }

func (b Bounds) check(m protoreflect.MessageDescriptor, payload []byte) error {
	left := b.Memory
	return b.walk(m, payload, &left, depth)
}

// walk subtracts the memory of a message's fields from left.
func (b Bounds) walk(m protoreflect.MessageDescriptor, data []byte, left *int, depth int) error {
	if depth == 0 {
		return fmt.Errorf("%s is nested too deeply: %w", m.Name(), ErrBounds)
	}
	take := func(n int) error {
		if *left -= n; *left < 0 {
			return fmt.Errorf("it would take more than %d bytes: %w", b.Memory, ErrBounds)
		}
		return nil
	}
	if err := take(perMessage); err != nil {
		return err
	}
	fields := m.Fields()
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(number, kind, data[n:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		value := data[n : n+size]
		data = data[n+size:]
		field := fields.ByNumber(number)
		if field == nil || kind != protowire.BytesType {
			// A number, or a field of a later version, whose bytes are kept as they are.
			if err := take(n + size + perValue); err != nil {
				return err
			}
			continue
		}
		content, _ := protowire.ConsumeBytes(value)
		switch field.Kind() {
		case protoreflect.MessageKind:
			if err := b.walk(field.Message(), content, left, depth-1); err != nil {
				return err
			}
		case protoreflect.StringKind:
			if len(content) > b.String {
				return fmt.Errorf("%s of %d bytes, the bound is %d: %w", field.Name(), len(content), b.String, ErrBounds)
			}
			fallthrough
		case protoreflect.BytesKind:
			if err := take(len(content) + perValue); err != nil {
				return err
			}
		default: // packed numbers, of a byte or more each
			if err := take(8 * len(content)); err != nil {
				return err
			}
		}
	}
	return nil
}
