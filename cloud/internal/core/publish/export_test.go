package publish

// BucketOf is bucketOf, for the fake edge's own inventories.
var BucketOf = bucketOf

// DefaultQuotas are several times the need of a kubelet with 110 pods and some agents.
func DefaultQuotas() Quotas {
	return Quotas{Interests: 1024, NewInterestsPerSecond: 16, Digests: 256, SelectorBytes: 64 << 10}
}
