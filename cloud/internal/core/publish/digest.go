package publish

import (
	"crypto/sha256"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

const (
	buckets = 256
	// shortSum is how many bytes of a bucket's sum are sent: enough to find nearly always where two
	// sets differ. A miss is found by their digests.
	shortSum = 4
	// fewEntries is up to how many objects an edge is asked for all its entries at once, instead of
	// for the sums of its buckets first.
	fewEntries = 64
)

// bucketOf is where an object's key falls: the first byte of SHA-256(namespace NUL name).
func bucketOf(key kube.Key) byte {
	b := make([]byte, 0, 64)
	b = append(b, key.Namespace...)
	b = append(b, 0)
	b = append(b, key.Name...)
	sum := sha256.Sum256(b)
	return sum[0]
}

// digest sums up a set of objects.
type digest struct {
	count uint64
	sum   kube.Sum
}

func digestOf(objects map[kube.Key]*kube.Object) digest {
	var d digest
	for _, o := range objects {
		d.count++
		d.sum.Xor(o.Sum)
	}
	return d
}

// digestFrom reads an edge's digest. A sum of the wrong length equals no other.
func digestFrom(p *topicpb.Digest) (d digest, ok bool) {
	d.count = p.GetCount()
	if len(p.GetSum()) != kube.SumSize {
		return d, false
	}
	d.sum = kube.Sum(p.GetSum())
	return d, true
}

func bucketSums(objects map[kube.Key]*kube.Object) *[buckets]kube.Sum {
	var sums [buckets]kube.Sum
	for key, o := range objects {
		sums[bucketOf(key)].Xor(o.Sum)
	}
	return &sums
}

// differing lists the buckets whose sums differ, as far as they are sent.
func differing(ours *[buckets]kube.Sum, theirs []byte) []uint32 {
	var out []uint32
	for i := range ours {
		if string(ours[i][:shortSum]) != string(theirs[i*shortSum:(i+1)*shortSum]) {
			out = append(out, uint32(i))
		}
	}
	return out
}
