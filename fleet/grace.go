package fleet

import (
	"time"
)

// Left is the clusters that keep what a bundle sent there although no decision names them any more, with the begin of
// their grace periods; zero: the period does not run, as the cluster is unavailable.
type Left map[string]time.Time

// text returns the value of AnnotationLeft for a cluster.
func (l Left) text(cluster string) string {
	at := l[cluster]
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}

// LeftAt returns when a cluster's grace period began, by AnnotationLeft of a work; zero: that is not recorded.
func (e *Existing) LeftAt() time.Time {
	at, err := time.Parse(time.RFC3339, e.Left)
	if err != nil {
		return time.Time{}
	}
	return at
}
