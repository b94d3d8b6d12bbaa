package publish

// BucketOf is what a behaving edge computes on its own side.
var BucketOf = bucketOf
