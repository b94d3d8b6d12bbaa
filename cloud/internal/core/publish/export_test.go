package publish

// BucketOf is what a behaving edge computes on its own side.
var BucketOf = bucketOf

// DefaultQuotas are several times what a kubelet with 110 pods and some agents need.
func DefaultQuotas() Quotas {
	return Quotas{Interests: 1024, NewInterestsPerSecond: 16, Digests: 256, SelectorBytes: 64 << 10}
}
