package store

import (
	"encoding/binary"
	"errors"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
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
	Version   Number = "version"  // the newest resource version of the edge; see data.md in docs/dev/decisions
	Epoch     Number = "epoch"    // of the last session with the cloud
	Entry     Number = "entry"    // of the newest entry of the outbox
	Interest  Number = "interest" // of the newest interest
	Dropped   Number = "dropped"  // events that the outbox had no room for and that have not been reported
	LastTime  Number = "lasttime" // the newest time known, unix milliseconds
	schemaOf  Number = "schema"
	readersOf Number = "readers"
)

const keyCheck = "keycheck" // a sealed record of which only the fact counts that it can be opened

// sealed reports whether the objects of a resource are sealed.
func sealed(resource schema.GroupVersionResource) bool {
	return resource.Group == "" && resource.Resource == "secrets"
}

func resourcePath(r schema.GroupVersionResource) [][]byte {
	return [][]byte{bucketObjects, []byte(r.Group + "/" + r.Version + "/" + r.Resource)}
}

var errNoResource = errors.New("the bucket's name is no resource")

func resourceOf(bucket []byte) (schema.GroupVersionResource, error) {
	part := strings.Split(string(bucket), "/")
	if len(part) != 3 {
		return schema.GroupVersionResource{}, errNoResource
	}
	return schema.GroupVersionResource{Group: part[0], Version: part[1], Resource: part[2]}, nil
}

func objectKey(namespace, name string) []byte { return []byte(namespace + "\x00" + name) }

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

const (
	// Schema is the version of the store's layout that this build writes. A file of an older
	// schema is brought up to it.
	Schema = 2
	// Readers is the oldest schema whose builds can use a file of this one, which the file
	// states: a device may go back to the release before. A layout is read one release before
	// it is written.
	Readers = 2
)
