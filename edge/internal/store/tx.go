package store

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/store/storepb"
)

// The buckets.
var (
	bucketMeta      = []byte("meta")
	bucketObjects   = []byte("objects")   // one bucket for each resource in it
	bucketInterests = []byte("interests") // by number
	bucketCopies    = []byte("interests-copy")
	bucketOutbox    = []byte("outbox")  // by number
	bucketAnswers   = []byte("answers") // sealed
	bucketEvents    = []byte("events")  // by namespace and name
	bucketModules   = []byte("modules") // one bucket for each module in it
)

func buckets() [][]byte {
	return [][]byte{bucketMeta, bucketObjects, bucketInterests, bucketCopies, bucketOutbox, bucketAnswers, bucketEvents, bucketModules}
}

// Number is one of the store's numbers.
type Number string

// The numbers.
const (
	Version  Number = "version"  // the newest resource version of the edge; see data.md in docs/decisions
	Epoch    Number = "epoch"    // of the last session with the cloud
	Entry    Number = "entry"    // of the newest entry of the outbox
	Interest Number = "interest" // of the newest interest
	Dropped  Number = "dropped"  // events that the outbox had no room for and that nobody has been told of
	LastTime Number = "lasttime" // the newest time known, unix milliseconds
	schemaOf Number = "schema"
)

const keyCheck = "keycheck" // a sealed record of which only the fact counts that it can be opened

// Tx is a transaction. It is used by the function that it was given to, and not after.
type Tx struct {
	store   *Store
	tx      *bolt.Tx
	changed map[string]uint64 // records, by where they lie
}

// create lays out a new file.
func (s *Store) create(tx *bolt.Tx) error {
	for _, name := range buckets() {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return fmt.Errorf("laying out the store: %w", err)
		}
	}
	t := &Tx{store: s, tx: tx}
	// Numbers begin at the time: a store made anew never gives out one that its predecessor gave out, and none that kube-apiserver could.
	start := max(uint64(max(s.config.Now().UnixMilli(), 0)), 1e12)
	for _, n := range []Number{Version, Epoch, Entry, Interest} {
		if err := t.SetNumber(n, start); err != nil {
			return err
		}
	}
	if err := t.SetNumber(schemaOf, Schema); err != nil {
		return err
	}
	id := make([]byte, 16)
	rand.Read(id)
	if err := t.putBytes([][]byte{bucketMeta}, []byte("id"), false, id); err != nil {
		return err
	}
	return t.putBytes([][]byte{bucketMeta}, []byte(keyCheck), true, []byte(keyCheck))
}

// check refuses a file that is not ours to use.
func (s *Store) check(tx *bolt.Tx) error {
	t := &Tx{store: s, tx: tx}
	have, err := t.Number(schemaOf)
	if err != nil {
		return err
	}
	if have == 0 || have > Schema {
		return fmt.Errorf("%w: schema %d, this one knows %d", ErrSchema, have, Schema)
	}
	if _, err := t.get([][]byte{bucketMeta}, []byte(keyCheck)); err != nil {
		if errors.Is(err, ErrKey) {
			return fmt.Errorf("%w: %s is not the key that %s was sealed with: put the right one back, or move both away",
				ErrKey, s.config.KeyFile, s.config.Path)
		}
		return err
	}
	return nil
}

// upgrade brings a file of an older schema up to this one. Schema 2 keeps a copy of each interest.
func (s *Store) upgrade(tx *bolt.Tx) error {
	t := &Tx{store: s, tx: tx}
	have, err := t.Number(schemaOf)
	if err != nil || have == Schema {
		return err
	}
	for _, name := range buckets() {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return fmt.Errorf("laying out the store: %w", err)
		}
	}
	all := map[uint64]*storepb.Interest{}
	if err := t.Interests(func(id uint64, i *storepb.Interest) error { all[id] = i; return nil }); err != nil {
		return err
	}
	for id, i := range all {
		if err := t.PutInterest(id, i); err != nil {
			return err
		}
	}
	return t.SetNumber(schemaOf, Schema)
}

// ID names this store: 16 random bytes, made with the file.
func (t *Tx) ID() ([]byte, error) {
	id, err := t.get([][]byte{bucketMeta}, []byte("id"))
	return bytes.Clone(id), err
}

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

// sealed says of which resources the objects are sealed.
func sealed(resource schema.GroupVersionResource) bool {
	return resource.Group == "" && resource.Resource == "secrets"
}

func resourcePath(r schema.GroupVersionResource) [][]byte {
	return [][]byte{bucketObjects, []byte(r.Group + "/" + r.Version + "/" + r.Resource)}
}

func objectKey(namespace, name string) []byte { return []byte(namespace + "\x00" + name) }

// PutObject writes an object as the cloud delivered it.
func (t *Tx) PutObject(ref object.Ref, o *storepb.Object) error {
	return t.put(resourcePath(ref.Resource), objectKey(ref.Namespace, ref.Name), sealed(ref.Resource), o)
}

// DeleteObject deletes an object, if it is there.
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

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// PutInterest writes an interest, and a copy of it in another place of the file: they are few and
// small, and without them nothing that is held can be served.
func (t *Tx) PutInterest(id uint64, i *storepb.Interest) error {
	if err := t.put([][]byte{bucketInterests}, number(id), false, i); err != nil {
		return err
	}
	return t.put([][]byte{bucketCopies}, number(id), false, i)
}

// DeleteInterest deletes an interest, if it is there.
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

// DeleteEntry deletes an entry of the outbox, if it is there.
func (t *Tx) DeleteEntry(id uint64) error { return t.delete([][]byte{bucketOutbox}, number(id)) }

// Entry reads an entry of the outbox; nil where there is none.
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

// Answer reads an answer; nil where there is none.
func (t *Tx) Answer(key []byte) (*storepb.Answer, error) {
	payload, err := t.get([][]byte{bucketAnswers}, key)
	if err != nil || payload == nil {
		return nil, err
	}
	a := &storepb.Answer{}
	return a, decode(payload, a)
}

// DeleteAnswer deletes an answer, if it is there.
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

// DeleteEvent deletes an event of the ring, if it is there.
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
