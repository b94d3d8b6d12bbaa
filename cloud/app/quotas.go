package app

import (
	"time"

	"github.com/skerry-io/skerry/cloud/internal/core/config"
	"github.com/skerry-io/skerry/cloud/internal/core/publish"
	"github.com/skerry-io/skerry/cloud/internal/core/quota"
	"github.com/skerry-io/skerry/cloud/internal/core/relay"
)

// relayQuotas bound the writes of one node.
func relayQuotas(c config.Relay) relay.Quotas {
	q := c.Quotas
	rate := func(perSecond, burst int) quota.Rate {
		return quota.Rate{PerSecond: float64(perSecond), Burst: burst, Heavy: q.HeavyNodes}
	}
	return relay.Quotas{
		Events:      rate(q.EventsPerSecond, q.EventBurst),
		Statuses:    rate(q.StatusesPerSecond, q.StatusBurst),
		StatusBytes: rate(q.StatusBytesPerSecond, q.StatusByteBurst),
		Requests:    rate(q.RequestsPerSecond, q.RequestBurst),
		Bytes:       q.BytesInFlight,
		CertificateRequests: quota.Rate{
			PerSecond: float64(q.CertificateRequestsPerHour) / time.Hour.Seconds(), Burst: q.CertificateRequestsPerHour,
		},
	}
}

// quotas bound the interests of one node.
func quotas(c config.Publish) publish.Quotas {
	return publish.Quotas{
		Interests: c.Quotas.Interests, NewInterestsPerSecond: c.Quotas.NewInterestsPerSecond, Digests: c.Quotas.Digests, SelectorBytes: c.Quotas.SelectorBytes,
	}
}

// reportQuota bounds the reports of one node.
func reportQuota(c config.Relay) quota.Rate {
	return quota.Rate{PerSecond: float64(c.Quotas.ReportsPerSecond), Burst: c.Quotas.ReportBurst, Heavy: c.Quotas.HeavyNodes}
}

// logQuota is how many batches of its pods' logs one node may send.
func logQuota(c config.Logs) quota.Rate {
	return quota.Rate{PerSecond: float64(c.BatchesPerSecond), Burst: 4 * c.BatchesPerSecond}
}
