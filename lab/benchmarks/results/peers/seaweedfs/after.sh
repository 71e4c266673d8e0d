# Mounts the bucket, which copies its metadata, and then caches what is read warm. The rest is left to first reads.
"@PROGRAMS@/weed" shell -master=127.0.0.1:@FREE1@.@FREE2@ -filer=127.0.0.1:@FREE5@.@FREE6@ <<'END'
remote.configure -name=origin -type=s3 -s3.access_key=origin -s3.secret_key=origin-secret -s3.region=us-east-1 -s3.endpoint=http://127.0.0.1:@ORIGIN@ -s3.force_path_style=true
remote.mount -dir=/buckets/@BUCKET@ -remote=origin/@BUCKET@
remote.cache -dir=/buckets/@BUCKET@/warm
END
