# JuiceFS stores blocks of its own: it cannot serve a bucket that exists. The objects are copied into a volume on the same origin.
export AWS_REGION=us-east-1
"@PROGRAMS@/juicefs" format --storage s3 --bucket "http://127.0.0.1:@ORIGIN@/volume" --access-key origin --secret-key origin-secret \
  --trash-days 0 "redis://127.0.0.1:@REDIS@/1" "@BUCKET@"
volume="redis://127.0.0.1:@REDIS@/1" "@PROGRAMS@/juicefs" sync --metrics "127.0.0.1:@FREE1@" \
  "minio://origin:origin-secret@127.0.0.1:@ORIGIN@/@BUCKET@/" jfs://volume/
