package app

import (
	"time"

	"github.com/skerry-io/skerry/cloud/internal/config"
	"github.com/skerry-io/skerry/cloud/internal/publish"
	"github.com/skerry-io/skerry/cloud/internal/quota"
	"github.com/skerry-io/skerry/cloud/internal/relay"
)

// relayQuotas are what one node may send.
func relayQuotas(c config.Relay) relay.Quotas {
	return relay.Quotas{
		Events:   quota.Rate{PerSecond: float64(c.Quotas.EventsPerSecond), Burst: c.Quotas.EventBurst},
		Requests: quota.Rate{PerSecond: float64(c.Quotas.RequestsPerSecond), Burst: c.Quotas.RequestBurst},
		Bytes:    c.Quotas.BytesInFlight,
		CertificateRequests: quota.Rate{
			PerSecond: float64(c.Quotas.CertificateRequestsPerHour) / time.Hour.Seconds(), Burst: c.Quotas.CertificateRequestsPerHour,
		},
	}
}

// quotas are what one node may ask for.
func quotas(c config.Publish) publish.Quotas {
	return publish.Quotas{
		Interests: c.Quotas.Interests, NewInterestsPerSecond: c.Quotas.NewInterestsPerSecond, Digests: c.Quotas.Digests, SelectorBytes: c.Quotas.SelectorBytes,
	}
}

// reportQuota is how much one node may report.
func reportQuota(c config.Relay) quota.Rate {
	return quota.Rate{PerSecond: float64(c.Quotas.ReportsPerSecond), Burst: c.Quotas.ReportBurst}
}

// logQuota is how many batches of its pods' logs one node may send.
func logQuota(c config.Logs) quota.Rate {
	return quota.Rate{PerSecond: float64(c.BatchesPerSecond), Burst: 4 * c.BatchesPerSecond}
}
