package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// Number reads a number; 0 where it was never set.
func (t *Tx) Number(n Number) (uint64, error) {
	b, err := t.get([][]byte{bucketMeta}, []byte(n))
	if err != nil || b == nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, &DamageError{Reason: fmt.Sprintf("number %q is cut off", n)}
	}
	return binary.BigEndian.Uint64(b), nil
}

// SetNumber writes a number.
func (t *Tx) SetNumber(n Number, v uint64) error {
	return t.putBytes([][]byte{bucketMeta}, []byte(n), false, binary.BigEndian.AppendUint64(nil, v))
}

// PutObject writes an object as the cloud delivered it.
func (t *Tx) PutObject(ref object.Ref, o *storepb.Object) error {
	return t.put(resourcePath(ref.Resource), objectKey(ref.Namespace, ref.Name), sealed(ref.Resource), o)
}

// DeleteObject deletes an object, if it exists.
func (t *Tx) DeleteObject(ref object.Ref) error {
	return t.delete(resourcePath(ref.Resource), objectKey(ref.Namespace, ref.Name))
}

// Objects calls do for every object, resource by resource.
func (t *Tx) Objects(do func(object.Ref, *storepb.Object) error) error {
	top, err := t.bucket([][]byte{bucketObjects}, false)
	if err != nil {
		return err
	}
	return top.ForEachBucket(func(name []byte) error {
		resource, err := resourceOf(name)
		if err != nil {
			return &DamageError{Reason: fmt.Sprintf("%q: %v", name, err)}
		}
		return t.each(resourcePath(resource), func(key, payload []byte) error {
			namespace, objectName, ok := strings.Cut(string(key), "\x00")
			if !ok {
				return &DamageError{Reason: fmt.Sprintf("%q names no object", key)}
			}
			o := &storepb.Object{}
			if err := decode(payload, o); err != nil {
				return err
			}
			return do(object.Ref{Resource: resource, Namespace: namespace, Name: objectName}, o)
		})
	})
}

// numbered is a bucket whose keys are numbers, in their order.
func numbered[T proto.Message](t *Tx, name []byte, fresh func() T, do func(uint64, T) error) error {
	return t.each([][]byte{name}, func(key, payload []byte) error {
		if len(key) != 8 {
			return &DamageError{Reason: fmt.Sprintf("bucket %q: a number is cut off", name)}
		}
		m := fresh()
		if err := decode(payload, m); err != nil {
			return err
		}
		return do(binary.BigEndian.Uint64(key), m)
	})
}

// PutInterest writes an interest, and a copy of it in another place of the file: they are few and
// small, and without them no cached object can be served.
func (t *Tx) PutInterest(id uint64, i *storepb.Interest) error {
	if err := t.put([][]byte{bucketInterests}, number(id), false, i); err != nil {
		return err
	}
	return t.put([][]byte{bucketCopies}, number(id), false, i)
}

// DeleteInterest deletes an interest, if it exists.
func (t *Tx) DeleteInterest(id uint64) error {
	if err := t.delete([][]byte{bucketInterests}, number(id)); err != nil {
		return err
	}
	return t.delete([][]byte{bucketCopies}, number(id))
}

// Interests calls do for every interest in the order of their numbers.
func (t *Tx) Interests(do func(uint64, *storepb.Interest) error) error {
	return numbered(t, bucketInterests, func() *storepb.Interest { return &storepb.Interest{} }, do)
}

// PutEntry writes an entry of the outbox.
func (t *Tx) PutEntry(id uint64, e *storepb.Entry) error {
	return t.put([][]byte{bucketOutbox}, number(id), false, e)
}

// DeleteEntry deletes an entry of the outbox, if it exists.
func (t *Tx) DeleteEntry(id uint64) error { return t.delete([][]byte{bucketOutbox}, number(id)) }

// Entry reads an entry of the outbox; nil without one.
func (t *Tx) Entry(id uint64) (*storepb.Entry, error) {
	payload, err := t.get([][]byte{bucketOutbox}, number(id))
	if err != nil || payload == nil {
		return nil, err
	}
	e := &storepb.Entry{}
	return e, decode(payload, e)
}

// Entries calls do for every entry of the outbox in the order of their numbers.
func (t *Tx) Entries(do func(uint64, *storepb.Entry) error) error {
	return numbered(t, bucketOutbox, func() *storepb.Entry { return &storepb.Entry{} }, do)
}

// PutAnswer seals and writes an answer.
func (t *Tx) PutAnswer(key []byte, a *storepb.Answer) error {
	return t.put([][]byte{bucketAnswers}, key, true, a)
}

// Answer reads an answer; nil without one.
func (t *Tx) Answer(key []byte) (*storepb.Answer, error) {
	payload, err := t.get([][]byte{bucketAnswers}, key)
	if err != nil || payload == nil {
		return nil, err
	}
	a := &storepb.Answer{}
	return a, decode(payload, a)
}

// DeleteAnswer deletes an answer, if it exists.
func (t *Tx) DeleteAnswer(key []byte) error { return t.delete([][]byte{bucketAnswers}, key) }

// Answers calls do for every answer.
func (t *Tx) Answers(do func(key []byte, a *storepb.Answer) error) error {
	return t.each([][]byte{bucketAnswers}, func(key, payload []byte) error {
		a := &storepb.Answer{}
		if err := decode(payload, a); err != nil {
			return err
		}
		return do(bytes.Clone(key), a)
	})
}

// PutEvent writes an event of the ring.
func (t *Tx) PutEvent(namespace, name string, e *storepb.Event) error {
	return t.put([][]byte{bucketEvents}, objectKey(namespace, name), false, e)
}

// DeleteEvent deletes an event of the ring, if it exists.
func (t *Tx) DeleteEvent(namespace, name string) error {
	return t.delete([][]byte{bucketEvents}, objectKey(namespace, name))
}

// Events calls do for every event of the ring.
func (t *Tx) Events(do func(namespace, name string, e *storepb.Event) error) error {
	return t.each([][]byte{bucketEvents}, func(key, payload []byte) error {
		namespace, name, ok := strings.Cut(string(key), "\x00")
		if !ok {
			return &DamageError{Reason: fmt.Sprintf("%q names no event", key)}
		}
		e := &storepb.Event{}
		if err := decode(payload, e); err != nil {
			return err
		}
		return do(namespace, name, e)
	})
}
