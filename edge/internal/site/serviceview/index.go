package serviceview

import (
	"hash/crc32"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

// The indexes of Services by their cluster IPs and of EndpointSlices by their Service. Endpoints'
// own addresses are not indexed: it would take more memory than the slices, for questions that few
// ask.
const (
	byAddress = "address"
	byService = "service"
)

// bucket is an index's entry for a text. An index has a set of 200 bytes and more for each of its
// values, and nearly every Service would have its own: so texts share 256 of them, and readers skip
// objects of other texts.
func bucket(text string) string { return string([]byte{byte(crc32.ChecksumIEEE([]byte(text)))}) }

func serviceIndexers() cache.Indexers {
	return cache.Indexers{byAddress: func(o any) (buckets []string, _ error) {
		if s, ok := o.(*corev1.Service); ok {
			for _, a := range clusterIPs(s) {
				buckets = append(buckets, bucket(a))
			}
		}
		return buckets, nil
	}}
}

// clusterIPs are a Service's; ClusterIPNone of a headless one.
func clusterIPs(s *corev1.Service) []string {
	if s.Spec.ClusterIP == corev1.ClusterIPNone {
		return []string{corev1.ClusterIPNone}
	}
	return s.Spec.ClusterIPs
}

func sliceIndexers() cache.Indexers {
	return cache.Indexers{byService: func(o any) ([]string, error) {
		s, ok := o.(*discoveryv1.EndpointSlice)
		if !ok || s.Labels[discoveryv1.LabelServiceName] == "" {
			return nil, nil
		}
		return []string{bucket(s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName])}, nil
	}}
}

func lookup[T any](informer cache.SharedIndexInformer, index, text string, is func(T) bool) (all []T) {
	found, err := informer.GetIndexer().ByIndex(index, bucket(text))
	if err != nil {
		return nil // the index exists from the start
	}
	for _, o := range found {
		if x, ok := o.(T); ok && is(x) {
			all = append(all, x)
		}
	}
	return all
}
